// What a script of the site packed: gzip in base64, since a page that was opened from a file may fetch nothing.
globalThis.unpacked = async (packed) => {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

// Search reads each page that it found for an excerpt. From a file it reads them out of one script.
if (location.protocol === "file:" && location.pathname.endsWith("/search.html")) {
  const root = new URL(".", location);
  const pages = new Promise((resolve) => {
    globalThis.coursePages = (packed) => resolve(unpacked(packed));
  });
  document.head.append(Object.assign(document.createElement("script"), { src: new URL("_static/pages.js", root) }));
  globalThis.fetch = async (address) => {
    const path = new URL(address, location).href.slice(root.href.length).split("#")[0];
    return new Response((await pages)[decodeURIComponent(path)] ?? "", { headers: { "Content-Type": "text/html" } });
  };
}
