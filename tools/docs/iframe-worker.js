// The search of the site runs in a worker, which a page that was opened from a disk may not start. There it runs in a hidden frame.
// The generator would take a script of another host instead, unless one of this name is there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (source) =>
        new Promise((done, fail) => {
          const script = inside.document.createElement("script");
          script.src = source;
          script.onload = done;
          script.onerror = fail;
          inside.document.body.appendChild(script);
        });
      inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(new URL(source, url))), Promise.resolve());
      this.inside = inside;
      this.loaded = load(new URL(url, location));
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
