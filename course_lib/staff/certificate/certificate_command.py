"""`course certificate` and `course verify` on the command line."""

import argparse
import dataclasses
import sys
from datetime import UTC, datetime
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.staff.grade.grade_command import count

CERTIFICATE_MEANS = (
    "The page is your own claim and says so: it carries your answers, and proves nothing by itself, since your "
    "machine could have written anything. Hand it to your instructor, whose `course verify` runs the answers again "
    "and can sign it."
)
VERIFY_MEANS = (
    "A learner's page is accepted when its answers, run again in the class grader's sandbox on fresh inputs, are all "
    "right; --sign then writes the signed certificate. A signed page is accepted when the class's key signed it "
    "exactly as it is: that proves that the key's holder ran the answers, not who wrote them. Exit code 0 for "
    "accepted, 1 for refused."
)


def certificate(arguments: argparse.Namespace) -> int:
    """Write your completion certificate: a page that your instructor can verify and sign."""
    from course_lib import progress
    from course_lib.staff.certificate import certificate_page, record
    from course_lib.staff.grade.results import write_whole

    folder = arguments.folder or Path(__file__).resolve().parents[3] / "exercises"
    read = progress.read(folder)
    unfinished = [f"{one.exercise} ({', '.join(one.open)})" for one in read.exercises if one.open]
    if unfinished:
        print(f"course certificate: {read.points} of {read.of} points; open: {', '.join(unfinished)}", file=sys.stderr)
        return 1
    made = record.claim(arguments.name, read, folder)
    write_whole(arguments.out, certificate_page.claim_page(made))
    print(
        f"{arguments.out}: {made.name}, {made.points} of {made.of} points; your own claim until your instructor "
        "verifies it"
    )
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Verify a completion certificate, and sign one whose answers are right."""
    from course_lib.staff.certificate import certificate_page
    from course_lib.staff.certificate.record import Refused, read_file

    if arguments.new_key:
        return _new_key(arguments.new_key)
    try:
        sealed = certificate_page.opened(read_file(arguments.file, certificate_page.LARGEST_BYTES + 1))
        return _verify_claim(sealed, arguments) if sealed.key is None else _verify_signed(sealed, arguments)
    except Refused as refusal:
        print(f"course verify: refused: {refusal}", file=sys.stderr)
        return 1


def _new_key(file: Path) -> int:
    from course_lib.staff.certificate import keys

    public = keys.make(file)
    print(f"{file}: the class's key {keys.id_of(keys.read_public(file))}; keep it to yourself")
    print(f"{public}: its public half, to verify with; publish it where people expect your school's word")
    return 0


def _verify_signed(sealed, arguments: argparse.Namespace) -> int:
    from course_lib.staff.certificate import keys
    from course_lib.staff.certificate.record import Refused

    if arguments.sign:
        raise CourseError("this certificate is signed already: leave --sign out")
    if not arguments.key:
        raise CourseError(
            f"this certificate says that the class key {sealed.key} signed it: name that key's file, or its public "
            "half, with --key"
        )
    public = keys.read_public(arguments.key)
    if keys.id_of(public) != sealed.key:
        raise Refused(f"signed with another class's key, {sealed.key}, and {arguments.key} is {keys.id_of(public)}")
    if not keys.is_signed(public, sealed.body, sealed.proof):
        raise Refused("the page was changed after it was signed, or this key never signed it")
    print(f"accepted: {_summary(sealed.record)}; signed with the class key {sealed.key}")
    return 0


def _verify_claim(sealed, arguments: argparse.Namespace) -> int:
    from course_lib.staff.certificate import certificate_page, rerun
    from course_lib.staff.certificate.record import Refused, write_new
    from course_lib.staff.grade.results import plain_line

    if arguments.key and not arguments.sign:
        raise Refused("nobody has signed this page; leave --key out to run its answers, or sign it with --sign FILE")
    if arguments.sign and not arguments.key:
        raise CourseError("--sign needs --key: name the class's key, which `course verify --new-key FILE` makes")
    if arguments.sign:
        from course_lib.staff.certificate import keys

        private = keys.read_private(arguments.key)  # before minutes of work
        if arguments.sign.exists():
            raise CourseError(f"{arguments.sign} is there already, and --sign overwrites nothing: name a new file")
    record, review = sealed.record, []
    arguments.at(f"all {len(record.exercises)} exercises are run again")
    for number, result in enumerate(rerun.results(record, arguments.jobs, not arguments.run_submissions_as_me), 1):
        print(f"[{number}/{len(record.exercises)}] {result.exercise}: {result.points} of {result.of}", flush=True)
        if result.problem or result.points < result.of or not result.of:
            wrong = "; ".join(verdict.summary for verdict in result.verdicts if not verdict.right) or result.problem
            raise Refused(plain_line(f"{result.exercise}, run again: {wrong or 'no question was checked'}"))
        review += [f"look at {result.exercise}: {line}" for line in result.review]
    for line in review:
        print(line)
    print(f"accepted: {_summary(record)}; all answers are right when run again")
    if arguments.sign:
        key, today = keys.id_of(private.public_key()), datetime.now(UTC).date().isoformat()
        body = certificate_page.confirmed_body(dataclasses.replace(record, answers=""), key, today)
        write_new(arguments.sign, certificate_page.signed_page(body, key, keys.sign(private, body)))
        print(f"{arguments.sign}: signed with the class key {key}; anybody verifies it with the key's public half")
    return 0


def _summary(record) -> str:
    return f"{record.name}, {record.points} of {record.of} points in {len(record.exercises)} exercises"


def add_certificate_arguments(parser: argparse.ArgumentParser) -> None:
    """What `course certificate` takes."""
    parser.description = f"{parser.description} {CERTIFICATE_MEANS}"
    add = parser.add_argument
    add("--name", required=True, help="as it shall stand on the certificate")
    add("--folder", type=Path, help="the folder of your exercise notebooks; exercises/ by default")
    text = "the page to write; certificate.html here by default"
    add("--out", type=Path, metavar="FILE", default=Path("certificate.html"), help=text)


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """What `course verify` takes."""
    parser.description = f"{parser.description} {VERIFY_MEANS}"
    add, what = parser.add_argument, parser.add_mutually_exclusive_group(required=True)
    what.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a learner's certificate, or a signed one")
    text = "make the class's key instead, once, and its public half FILE.pub"
    what.add_argument("--new-key", type=Path, metavar="FILE", help=text)
    add("--key", type=Path, metavar="FILE", help="the class's key; to verify a signed one, its public half is enough")
    add("--sign", type=Path, metavar="FILE", help="write the signed certificate there when all answers are right")
    add("--jobs", type=count, default=1, metavar="N", help="exercises run again at a time, 1 by default")
    text = "use no sandbox: the learner's code can then read and change all that you can"
    add("--run-submissions-as-me", action="store_true", help=text)


COMMANDS = {
    "certificate": (certificate, add_certificate_arguments, 'course certificate --name "Ada Lovelace"'),
    "verify": (verify, add_verify_arguments, "course verify ada.html --key class.key --sign ada-signed.html"),
}
