// What the user wants: fields, LoRAs and how many; kept by the browser from one visit to the next.

const FORM = "atelier.form";
const PREVIEWS = 6;
const BASICS = ["width", "height", "num_frames", "fps", "seed", "num_inference_steps", "cfg_scale", "schedule"];
const NOT_ASKED = ["num_images", "output", "loras"];  // they have places of their own
const OF_CLIPS = ["num_frames", "fps"];
const MOST_FILES = 3;  // inputs that need not be given, beyond which they are folded

class Form {
  constructor(table, loras) {
    this.table = table;
    this.changed = () => {
      showError("");
      this.save();
    };
    this.loras = new LoraList(loras, this.changed, (word) => this.addWord(word));
    this.fields = new Map();
    for (const row of this.rows()) this.add(row);
    byId("advanced_group").hidden = byId("advanced").children.length === 0;
    byId("count").max = this.table.settings.find(({name}) => name === "num_images")?.maximum ?? 64;
    byId("count").addEventListener("input", this.changed);
    this.fields.get("schedule")?.control.addEventListener("input", () => this.showDefaults());
    this.load();
    this.showDefaults();
  }

  // Settings and inputs, each once; what the family says of one counts.
  rows() {
    const rows = new Map();
    for (const row of [...this.table.settings, ...this.table.inputs]) rows.set(row.name, row);
    const shown = [...rows.values()].filter((row) => !NOT_ASKED.includes(row.name) &&
                                            (this.table.clips || !OF_CLIPS.includes(row.name)));
    return shown.sort((one, other) => this.rank(one) - this.rank(other));
  }

  // Basics in their order; then inputs that are needed, those of the family, and settings.
  rank(row) {
    if (BASICS.includes(row.name)) return BASICS.indexOf(row.name);
    return BASICS.length + (row.required ? 0 : this.table.inputs.some(({name}) => name === row.name) ? 1 : 2);
  }

  add(row) {
    row.preset = row.default;
    const place = this.placeOf(row);
    const field = isFile(row) ? new FileField(row, this.changed)
                              : new ValueField(row, this.changed, ["inputs", "advanced"].includes(place));
    this.fields.set(row.name, field);
    byId(place).append(field.root);
  }

  placeOf(row) {
    if (row.name in PROMPTS) return "prompts";
    if (BASICS.includes(row.name) && !(row.name === "schedule" && this.table.schedules.length < 2)) return "basics";
    if (row.required || row.starts) return "inputs";
    if (row.kind === "file") return "advanced";
    const files = this.table.inputs.filter((other) => isFile(other) && !other.required);
    return isFile(row) && files.length <= MOST_FILES ? "inputs" : "advanced";
  }

  // What the model and the schedule say where the user says nothing.
  showDefaults() {
    const named = this.fields.get("schedule")?.control.value;
    const schedule = this.table.schedules.find(({name}) => name === named) ?? this.table.schedules[0];
    const defaults = {...this.table.defaults, num_inference_steps: schedule?.steps, cfg_scale: schedule?.cfg_scale,
                      solver: schedule?.solver, schedule: this.table.schedules[0]?.name};
    for (const [name, value] of Object.entries(defaults))
      this.fields.get(name)?.setDefault(this.fields.get(name).row.preset ?? value);
  }

  addWord(word) {
    const {control} = this.fields.get("prompt");
    if (!control.value.includes(word)) control.value += (control.value.trim() ? ", " : "") + word;
    this.save();
  }

  // What POST /v1/jobs takes. `factor` is one that the strengths of LoRAs are multiplied by.
  async request({factor = 1, ...others} = {}) {
    const request = {prompt: "", num_images: Number(byId("count").value), previews: PREVIEWS};
    for (const [name, field] of this.fields) {
      const value = await field.value();
      if (value !== undefined) request[name] = value;
    }
    const loras = this.loras.value(factor);
    if (loras) request.loras = loras;
    return {...request, ...others};
  }

  clear() {
    for (const field of this.fields.values()) field.clear();
    this.loras.clear();
    byId("count").value = 1;
    this.showDefaults();
    this.save();
  }

  // Takes the settings of a result; files that were given to it stay to be chosen. Returns what could not be taken.
  take(settings) {
    const missing = [];
    for (const [name, field] of this.fields) {
      // Files tell the noise levels beside the steps that they follow from.
      const follows = name === "sigmas" && settings.num_inference_steps !== undefined;
      const value = follows ? undefined : settings[name] ?? undefined;
      if (isFile(field.row)) {
        if (value !== undefined && value !== "" && field.items.length === 0) missing.push(`${labelOf(field.row)}: choose it again`);
      } else if (value === undefined) field.clear();
      else field.take(value);
    }
    const unknown = this.loras.take(settings.loras ?? []);
    missing.push(...unknown.map((name) => `LoRA ${name} is not on this server`));
    if (settings.family && settings.family !== this.table.family) missing.push(`it was made by ${settings.family}`);
    byId("count").value = 1;
    this.showDefaults();
    this.save();
    return missing;
  }

  // Fields that take files of this type, "image/png": those in sight, or where none does the others.
  takers(type) {
    const takers = [...this.fields.values()].filter((field) => field instanceof FileField && field.row.kind !== "file" && field.takes(type));
    const near = takers.filter((field) => !byId("advanced").contains(field.root));
    return near.length > 0 ? near : takers;
  }

  save() {
    byId("compare").hidden = this.loras.used().length === 0;
    const fields = Object.fromEntries([...this.fields].map(([name, field]) => [name, field.kept()]));
    localStorage.setItem(FORM, JSON.stringify({fields, loras: this.loras.kept(), count: byId("count").value}));
  }

  load() {
    const kept = JSON.parse(localStorage.getItem(FORM) ?? "{}");
    for (const [name, field] of this.fields) if (kept.fields?.[name] !== undefined) field.restore(kept.fields[name]);
    this.loras.restore(kept.loras);
    if (kept.count) byId("count").value = kept.count;
    this.save();
  }
}
