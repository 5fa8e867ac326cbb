// What is finished: tiles, and one result shown large with the settings that made it.

const TILES = 60;

const keyOf = (item) => `${item.job.id}/${item.number}`;
const isClipFile = (file) => file.content_type.startsWith("video/");

// A few words that tell results apart.
function captionOf({job, file}) {
  const loras = (job.settings?.loras ?? []).map(({name, strength}) => `${name} ${strength}`);
  return [`seed ${file.seed}`, ...loras].join(", ");
}

function mediaOf({job, file}, hasControls) {
  const name = titleOf(job);
  if (!isClipFile(file)) return make("img", {alt: name});
  return make("video", {muted: true, loop: true, playsInline: true, preload: "metadata", controls: hasControls, "aria-label": name});
}

class Gallery {
  constructor() {
    this.items = [];
    this.tiles = new Map();
    this.most = TILES;
    this.viewer = new Viewer(this);
    byId("more").addEventListener("click", () => {
      this.most += TILES;
      this.draw();
    });
  }

  show(jobs) {
    const newest = [...jobs].sort((one, other) => other.created - one.created);
    this.items = newest.flatMap((job) => job.files.map((file, number) => ({job, file, number})));
    this.draw();
    this.viewer.refresh();
  }

  draw() {
    const shown = this.items.slice(0, this.most);
    this.tiles = new Map(shown.map((item) => [keyOf(item), this.tiles.get(keyOf(item)) ?? this.tile(item)]));
    for (const item of shown) this.tiles.get(keyOf(item)).querySelector(".caption").textContent = captionOf(item);
    arrange(byId("tiles"), [...this.tiles.values()]);
    byId("gallery_empty").hidden = this.items.length > 0;
    byId("more").hidden = this.items.length <= this.most;
  }

  tile(item) {
    const media = mediaOf(item, /* hasControls */ false);
    showFileWhenNear(media, item.file.url);
    const about = make("span", {className: "about"}, make("span", {className: "excerpt"}, titleOf(item.job)),
                       make("span", {className: "help caption"}));
    const button = make("button", {type: "button", onclick: () => this.viewer.open(keyOf(item))}, media, about);
    if (isClipFile(item.file)) {
      for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => media.play().catch(() => {}));
      for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => media.pause());
    }
    return make("li", {"data-item": keyOf(item)}, button);
  }

  place(key) { return this.items.findIndex((item) => keyOf(item) === key); }
}

class Viewer {
  constructor(gallery) {
    this.gallery = gallery;
    this.dialog = byId("viewer");
    this.key = null;
    this.onTake = this.onUse = this.onDelete = null;  // set by start.js
    byId("previous").addEventListener("click", () => this.step(-1));
    byId("next").addEventListener("click", () => this.step(1));
    byId("close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("close", () => this.leave());
    document.addEventListener("keydown", (event) => {
      const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (by && this.dialog.open && event.target.tagName !== "VIDEO") this.step(by);
    });
  }

  open(key) {
    this.key = key;
    if (!this.dialog.open) this.dialog.showModal();
    this.draw();
  }

  leave() {
    const tile = this.gallery.tiles.get(this.key);
    this.key = null;
    byId("shown").replaceChildren();
    tile?.querySelector("button").focus();
  }

  step(by) {
    const item = this.gallery.items[this.gallery.place(this.key) + by];
    if (item) this.open(keyOf(item));
  }

  // Keeps "Next" right while results come, and closes where the one that is shown has gone.
  refresh() {
    if (this.key === null) return;
    if (this.gallery.place(this.key) < 0) this.dialog.close();
    else this.drawBar();
  }

  drawBar() {
    const place = this.gallery.place(this.key);
    byId("viewer_title").textContent = `${place + 1} of ${this.gallery.items.length}`;
    byId("previous").disabled = place === 0;
    byId("next").disabled = place === this.gallery.items.length - 1;
  }

  draw() {
    this.drawBar();
    const item = this.gallery.items[this.gallery.place(this.key)];
    const media = mediaOf(item, /* hasControls */ true);
    showFile(media, item.file.url);
    byId("shown").replaceChildren(media);
    byId("settings").replaceChildren(...settingsRows(item));
    const save = make("a", {className: "button", download: nameOf(item)}, "Download");
    showFile(save, item.file.url, "href");
    byId("uses").replaceChildren(
      make("button", {type: "button", className: "main", onclick: () => this.onTake(item)}, "Take these settings"),
      ...this.onUse(item).map(([label, use]) => make("button", {type: "button", onclick: use}, label)),
      save, this.deletion(item));
  }

  // Asks once more, since nothing brings a result back.
  deletion(item) {
    const count = item.job.files.length;
    const button = make("button", {type: "button", onclick: () => {
      if (button.textContent !== "Delete") return this.onDelete(item);
      button.textContent = count === 1 ? "Delete for good" : `Delete all ${count} of this job`;
    }}, "Delete");
    return button;
  }
}

function settingsRows({job, file}) {
  const {prompt, negative_prompt, ...others} = job.settings;
  const settings = {prompt, negative_prompt, ...others, seed: file.seed};
  return Object.entries(settings).filter(([, value]) => ![undefined, null, ""].includes(value)).flatMap(([name, value]) => [
    make("dt", {}, labelOf({name})), make("dd", {}, settingText(name, value))]);
}

function settingText(name, value) {
  if (name === "loras") return value.map((lora) => `${lora.name} at ${lora.strength}`).join("\n");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function nameOf({job, file, number}) {
  return `${job.id}_${number}.${file.content_type.split("/")[1].replace("jpeg", "jpg")}`;
}
