// What `course lab` adds to JupyterLab: prose of about 80 characters, listings and tables that scroll, names for
// what has none, the seconds of the cell that runs and of about how many, empty brackets at stored outputs, and no
// question at closing a notebook that was only read and run.
var _JUPYTERLAB = globalThis._JUPYTERLAB ?? {};
{
  const STYLE = `
    .jp-Notebook .jp-RenderedMarkdown > :is(p, ul, ol, blockquote) { max-width: 80ch; }
    .jp-OutputArea-output figure { margin: 0.5em 0; max-width: 80ch; }
    .jp-OutputArea-output figcaption { margin-top: 0.5em; }
    .jp-RenderedText pre { white-space: pre; word-break: normal; overflow-x: auto; }
    .jp-OutputArea-output.jp-RenderedHTMLCommon { overflow-x: auto; }
    .jp-RenderedHTMLCommon th[scope="row"] { position: sticky; left: 0; background: var(--jp-layout-color1); }
    .course-panel .jp-RenderedHTMLCommon table { margin: 0.5em 0; }
    .course-panel .widget-html-content, .course-panel :is(th, td) { line-height: 1.4; }
    .jp-InputPrompt[data-seconds]::after { content: attr(data-seconds); display: block; white-space: pre; }
    .jp-InputPrompt[data-seconds]::after { font-weight: bold; }
    body[data-jp-theme-light="false"] { color-scheme: dark; }
  `;

  // What a screen reader or the keyboard misses in JupyterLab 4.6 and ipywidgets 8 (axe names each), and its repair.
  const label = (of) => (element) => element.setAttribute("aria-label", of(element));
  const REPAIRS = [
    [
      ".widget-slider .noUi-handle:not([aria-label])", // ipywidgets issue 3859
      label((handle) => handle.closest(".widget-slider").querySelector(".widget-label").textContent),
    ],
    [
      ".jp-Cell .cm-content:not([aria-label])",
      label((text) => (text.closest(".jp-CodeCell") ? "Code of this cell" : "Text of this cell")),
    ],
    [".jp-collapseHeadingButton:not([aria-label])", label(() => "Fold or unfold this section")],
    [".jp-skiplink-wrapper:not([role])", (links) => links.setAttribute("role", "navigation")],
    [".jp-skiplink-wrapper:not([aria-label])", label(() => "Skip links")],
    [".jp-WindowedPanel-viewport[role=feed] > .jp-Cell:not([role])", (cell) => cell.setAttribute("role", "article")],
    ["jp-button[aria-pressed]", (button) => button.removeAttribute("aria-pressed")], // inside is a button that says it
    [".jp-OutputArea-output > pre:not([tabindex])", (text) => text.setAttribute("tabindex", "0")], // it may scroll
    [".jp-OutputArea-output.jp-RenderedHTMLCommon:not([tabindex])", (page) => page.setAttribute("tabindex", "0")],
  ];
  const repair = () => {
    for (const [selector, fix] of REPAIRS) document.querySelectorAll(selector).forEach(fix);
  };
  // How long a cell has been running, once that is long, and how long it took where it was stored: beside its [*].
  // The first cell with [*] is taken for the one that runs: so it is but where cells were started in another order.
  const began = new WeakMap();
  const tellTime = (panels) => {
    for (const panel of panels) {
      let waits = false;
      for (const cell of panel.content?.widgets ?? []) {
        const prompt = cell.node.querySelector(".jp-InputPrompt");
        if (waits || prompt?.textContent !== "[*]:") {
          began.delete(cell);
          if (prompt) delete prompt.dataset.seconds;
          continue;
        }
        waits = true;
        if (!began.has(cell)) began.set(cell, Date.now());
        const seconds = Math.floor((Date.now() - began.get(cell)) / 1000);
        const about = cell.model.getMetadata("seconds");
        if (seconds >= 3) prompt.dataset.seconds = about ? `${seconds} s\nof ~${about}` : `${seconds} s`;
      }
    }
  };

  const text = (model) => JSON.stringify(Array.from(model.cells, (cell) => [cell.type, cell.sharedModel.source]));

  // Outputs alone are no work to save: a lesson that was run stays as it came, for git too.
  const watched = new WeakSet();
  const watch = async (panel) => {
    const { context } = panel;
    if (watched.has(panel) || !context?.model?.cells) return;
    watched.add(panel);
    await context.ready;
    // What came with the file is nobody's run: its brackets are empty until its cell is run here.
    for (const cell of context.model.cells) if (cell.type === "code") cell.executionCount = null;
    let kept = text(context.model);
    const settle = () => {
      if (context.model.dirty && text(context.model) === kept) context.model.dirty = false;
    };
    context.saveState.connect((_, state) => {
      if (state === "completed") kept = text(context.model);
    });
    context.model.stateChanged.connect(settle);
    settle();
  };

  const plugin = {
    id: "course-seat:plugin",
    autoStart: true,
    activate: (app) => {
      document.head.append(Object.assign(document.createElement("style"), { textContent: STYLE }));
      // At once, before the change is drawn or axe looks at it: half a millisecond, some 300 times in a lesson's run.
      new MutationObserver(repair).observe(document.body, {
        childList: true,
        subtree: true,
        attributeFilter: ["aria-pressed", "role"],
      });
      setInterval(() => tellTime(app.shell.widgets("main")), 1000);
      app.shell.layoutModified.connect(() => {
        for (const panel of app.shell.widgets("main")) watch(panel);
      });
    },
  };

  _JUPYTERLAB["course-seat"] = { init: () => {}, get: async () => () => plugin };
}
