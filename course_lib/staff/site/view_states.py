"""The states of the views, drawn ahead for pages without a kernel. Needs matplotlib; static/views.js reads them."""

import concurrent.futures
import multiprocessing
from pathlib import Path

from course_lib import views
from course_lib.staff.site import packed_text
from course_lib.views.controls import as_text


def stage(folder: Path) -> None:
    """Write folder/NAME.js for each view, drawn by two processes."""
    folder.mkdir(parents=True)
    fresh = multiprocessing.get_context("spawn")  # a fork of a process that has TensorFlow's threads may crash
    with concurrent.futures.ProcessPoolExecutor(2, fresh) as pool:
        for name, text in zip(views.__all__, pool.map(script, views.__all__)):
            (folder / f"{name}.js").write_text(text)


def script(name: str) -> str:
    """A script that hands one view's states to the page."""
    return packed_text.call("courseView", name, value=states(name))


def states(name: str) -> dict:
    """What a page needs of a view.

    Returns  controls: label, values as text, and whether it plays; places: the values' places,
             joined by commas, to a state's number; states: the places that its controls then
             have, and its picture, caption and table as HTML
    """
    explorer = getattr(views, name)()
    offered, ways = explorer.drawn_ahead()
    places, drawn = {}, {}
    for chosen, taken in ways:
        at = tuple(offered[control].index(value) for control, value in taken.items())
        if at not in drawn:
            drawn[at] = {"at": at, "html": explorer.view(**taken)._repr_html_()}
        places[",".join(map(str, chosen))] = list(drawn).index(at)
    controls = [
        {"name": name, "label": control.label, "values": [*map(as_text, offered[name])], "plays": control.plays}
        for name, control in explorer.controls.items()
    ]
    return {"controls": controls, "places": places, "states": list(drawn.values())}
