// The course's views on a page without a kernel: states that were drawn with the book answer the controls.
{
  const folder = new URL("views/", document.currentScript.src);
  const waiting = {};

  // Each file of states calls this.
  globalThis.courseView = (name, packed) => waiting[name].resolve(unpacked(packed));

  const statesOf = (name) => {
    if (!waiting[name]) {
      waiting[name] = {};
      waiting[name].states = new Promise((resolve) => (waiting[name].resolve = resolve));
      const script = document.createElement("script");
      script.src = new URL(name + ".js", folder);
      document.head.append(script);
    }
    return waiting[name].states;
  };

  const element = (tag, attributes = {}, ...inside) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...inside);
    return made;
  };

  // The stored picture and table become what the controls lead to.
  const upgrade = async (view, number) => {
    const { controls, places, states } = await statesOf(view.dataset.view);
    const start = JSON.parse(view.dataset.start);
    const at = controls.map(({ name, values }) => Math.max(0, values.indexOf(start[name])));
    const led = (chosen) => states[places[chosen.join(",")]];
    if (!led(at)) return; // the stored state is not among those drawn: it stays as it is
    const shown = element("div");
    const said = element("p", { className: "visually-hidden", role: "status" });
    const inputs = controls.map(({ label, values }, place) => {
      const id = `view-${number}-${place}`;
      const input = element("select", { id }, ...values.map((value, index) => element("option", { value: index }, value)));
      input.addEventListener("change", () => move(place, Number(input.value)));
      return { input, label: element("label", { htmlFor: id }, label) };
    });

    const move = (place, to) => {
      const chosen = at.map((now, index) => (index === place ? to : now));
      const state = led(chosen);
      if (!state) return;
      at.splice(0, at.length, ...state.at);
      draw(state);
    };
    const draw = (state) => {
      const high = shown.offsetHeight;
      shown.innerHTML = state.html;
      shown.style.minHeight = `${Math.max(high, shown.offsetHeight)}px`; // the page does not jump
      said.textContent = shown.querySelector("figcaption").textContent;
      inputs.forEach(({ input }, place) => {
        // an option that leads to another is not offered now
        [...input.options].forEach((option, to) => {
          option.disabled = led(at.map((now, index) => (index === place ? to : now)))?.at[place] !== to;
        });
        input.value = at[place];
      });
    };

    const form = element("div", { className: "view-controls" });
    controls.forEach(({ label, plays, values }, place) => {
      form.append(inputs[place].label, inputs[place].input);
      if (!plays) return;
      let timer;
      const play = element("button", { type: "button" }, `Play ${label}`);
      const stop = () => {
        timer = clearInterval(timer);
        play.textContent = `Play ${label}`;
      };
      const last = () => inputs[place].input.querySelectorAll("option:enabled").length - 1 <= at[place];
      play.addEventListener("click", () => {
        if (timer) return stop();
        if (last()) move(place, 0);
        play.textContent = "Stop";
        timer = setInterval(() => (last() ? stop() : move(place, at[place] + 1)), 700);
      });
      form.append(play);
    });
    view.replaceChildren(form, shown, said);
    draw(led(at));
    view.dataset.ready = "";
  };

  addEventListener("DOMContentLoaded", () => document.querySelectorAll(".course-view").forEach(upgrade));
}
