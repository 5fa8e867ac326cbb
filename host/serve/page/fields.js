// Fields of settings and inputs, made from the rows of GET /v1/inputs.

const LABELS = {
  fps: "Frames/s", num_frames: "Frames", num_inference_steps: "Steps", cfg_scale: "Guidance",
  denoising_strength: "Strength of change", num_images: "Count", loras: "LoRAs",
};

const PROMPTS = {prompt: 4, negative_prompt: 2};  // and their lines

const labelOf = ({name}) => LABELS[name] ?? wordsOf(name);

// Help speaks of flags, and the page of its fields.
const helpOf = (row) => (row.help ?? "").replace(/--(\w+)/g, (_, name) => `"${labelOf({name})}"`);

// A field that is empty leaves its setting to the server.
class ValueField {
  constructor(row, changed, hasHelpShown) {
    this.row = row;
    const id = `field_${row.name}`;
    this.control = this.makeControl({id, required: row.required === true && row.kind !== "text",
                                     "aria-describedby": `help_${row.name}`, title: helpOf(row)});
    this.control.addEventListener("input", changed);
    const help = make("p", {className: "help", id: `help_${row.name}`, hidden: !hasHelpShown}, helpOf(row));
    this.root = make("div", {className: "field", "data-name": row.name},
                     make("label", {htmlFor: id}, labelOf(row)), help, this.control);
  }

  makeControl(properties) {
    const {name, kind, choices, list, minimum, maximum} = this.row;
    if (name in PROMPTS) return make("textarea", {...properties, rows: PROMPTS[name]});
    if (choices?.length > 0 && !list)
      return make("select", properties, ...[["", this.defaultWord()], ...choices.map((choice) => [choice, choice])]
        .map(([value, text]) => make("option", {value}, text)));
    if (kind === "flag")
      return make("select", properties, ...[["", this.defaultWord()], ["true", "yes"], ["false", "no"]]
        .map(([value, text]) => make("option", {value}, text)));
    if (list) return make("textarea", {...properties, rows: 2, placeholder: "one a line"});
    if (kind === "text") return make("input", {...properties, placeholder: this.defaultText()});
    if (kind === "seed")
      return make("input", {...properties, inputMode: "numeric", pattern: "-1|[0-9]{1,20}", placeholder: this.defaultText() || "any"});
    return make("input", {...properties, type: "number", step: kind === "integer" ? 1 : "any", min: minimum ?? "",
                          max: maximum ?? "", placeholder: this.defaultText()});
  }

  defaultText() { return this.row.default === undefined || this.row.default === null ? "" : String(this.row.default); }

  defaultWord() {
    const text = this.defaultText();
    return ["", "default"].includes(text) ? "default" : `${text} (default)`;
  }

  // What stands where nothing is typed.
  setDefault(value) {
    if (value === undefined || value === null) return;
    this.row.default = value;
    if (this.control.tagName === "SELECT") this.control.options[0].textContent = this.defaultWord();
    else this.control.placeholder = this.defaultText();
  }

  typed(text) {
    if (this.row.kind === "integer" || this.row.kind === "real") return Number(text);
    if (this.row.kind === "seed") return text === "-1" ? -1 : text;
    return this.row.kind === "flag" ? text === "true" : text;
  }

  async value() {
    const text = this.control.value.trim();
    if (text === "") return undefined;
    if (this.row.list) return text.split("\n").map((line) => this.typed(line.trim()));
    return this.typed(text);
  }

  // Takes a value as settings have it.
  take(value) { this.control.value = Array.isArray(value) ? value.join(this.row.list ? "\n" : ",") : String(value); }

  clear() { this.control.value = ""; }

  kept() { return this.control.value; }

  restore(kept) { this.control.value = String(kept ?? ""); }
}

const isFile = (row) => row.kind in ACCEPTED;
