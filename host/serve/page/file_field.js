// A field of pictures, clips or sounds: chosen, dropped, pasted, or taken from the results.

const ACCEPTED = {image: "image/*", mask: "image/*", video: "video/*,image/gif,image/webp", video_mask: "video/*,image/gif,image/webp",
                  audio: "audio/*", file: ""};

function takes(kind, type) {
  return ACCEPTED[kind] === "" || ACCEPTED[kind].split(",").some((wanted) => wanted === type ||
    (wanted.endsWith("/*") && type.startsWith(wanted.slice(0, -1))));
}

class FileField {
  constructor(row, changed) {
    this.row = row;
    this.changed = changed;
    this.items = [];  // {file} of this machine, or {job, number, url, type} of the server
    this.list = make("ul", {className: "items"});
    this.chooser = make("input", {type: "file", id: `field_${row.name}`, accept: ACCEPTED[row.kind], multiple: row.list,
                                  "aria-describedby": `help_${row.name}`, onchange: () => this.choose()});
    this.root = make("div", {className: "field drop", "data-name": row.name},
                     make("label", {htmlFor: this.chooser.id}, labelOf(row) + (row.required ? " (needed)" : "")),
                     make("p", {className: "help", id: `help_${row.name}`}, helpOf(row)),
                     this.chooser, this.list);
    this.root.addEventListener("dragover", () => this.root.classList.add("over"));
    this.root.addEventListener("dragleave", () => this.root.classList.remove("over"));
    this.root.addEventListener("drop", () => this.root.classList.remove("over"));
  }

  takes(type) { return takes(this.row.kind, type); }

  choose() {
    for (const file of this.chooser.files) this.add({file});
    this.chooser.value = "";
  }

  add(item) {
    if (!this.row.list) this.items.length = 0;
    this.items.push(item);
    this.draw();
    this.changed();
  }

  remove(item) {
    this.items = this.items.filter((other) => other !== item);
    this.draw();
    this.changed();
    this.chooser.focus();
  }

  clear() {
    this.items = [];
    this.draw();
  }

  draw() {
    this.list.replaceChildren(...this.items.map((item) => this.drawItem(item)));
  }

  drawItem(item) {
    const type = item.file?.type ?? item.type;
    const name = item.file?.name ?? `result ${item.number + 1} of a job`;
    const remove = make("button", {type: "button", "aria-label": `Remove ${name} from ${labelOf(this.row)}`,
                                   onclick: () => this.remove(item)}, "Remove");
    return make("li", {}, pictureOf(item, type, name), make("p", {className: "name"}, name), remove);
  }

  // What the server is sent; undefined: nothing.
  async value() {
    const values = await Promise.all(this.items.map((item) =>
      item.file ? bytesAsUrl(item.file) : {job: item.job, file: item.number}));
    if (values.length === 0) return undefined;
    return this.row.list ? values : values[0];
  }

  // Results are kept by name; files of this machine are not.
  kept() { return this.items.filter((item) => item.job); }

  restore(kept) {
    this.items = Array.isArray(kept) ? kept : [];
    this.draw();
  }
}

function pictureOf(item, type, name) {
  const isClip = type.startsWith("video/");
  if (!isClip && !type.startsWith("image/")) return null;
  const picture = isClip ? make("video", {muted: true, preload: "metadata", "aria-label": name}) : make("img", {alt: name});
  if (item.file) picture.src = URL.createObjectURL(item.file);
  else showFile(picture, item.url);
  return picture;
}
