// LoRAs of a request: which ones, and how strongly.

class LoraRow {
  constructor(lora, changed, addWords) {
    this.name = lora.name;
    this.isLoaded = lora.loaded === true;
    this.preset = lora.strength ?? 1;
    this.changed = changed;
    const id = `lora_${lora.name}`;
    this.use = make("input", {type: "checkbox", id, oninput: changed});
    this.slider = make("input", {type: "range", min: -2, max: 2, step: 0.05, "aria-label": `Strength of ${lora.name}`,
                                 oninput: () => this.set(this.slider.value)});
    this.number = make("input", {type: "number", min: -2, max: 2, step: "any", "aria-label": `Strength of ${lora.name}, as a number`,
                                 oninput: () => this.set(this.number.value)});
    const words = triggerWords(lora.metadata).map((word) =>
      make("button", {type: "button", title: "Add to the prompt", onclick: () => addWords(word)}, word));
    this.root = make("div", {className: "lora", role: "group", "aria-label": lora.name},
                     this.use, make("label", {htmlFor: id, className: "inline"}, lora.name), this.number, this.slider,
                     words.length > 0 ? make("div", {className: "words row"}, ...words) : null);
    this.clear();
  }

  // A strength that is chosen is meant to be used.
  set(strength) {
    if (this.slider.value !== strength) this.slider.value = strength;
    if (this.number.value !== strength) this.number.value = strength;
    this.use.checked = true;
    this.changed();
  }

  restore(isUsed, strength) {
    this.use.checked = isUsed;
    this.slider.value = this.number.value = strength;
  }

  // As the server has it for requests that name none.
  clear() { this.restore(this.isLoaded, this.isLoaded ? this.preset : 1); }

  strength() { return Number(this.number.value); }
}

// Words that a LoRA was trained with, where its file says them.
function triggerWords(metadata) {
  const words = metadata?.trigger_words ?? [];
  return Array.isArray(words) ? words : [words];
}

const FEW_LORAS = 8;  // that are looked through without a search

class LoraList {
  constructor(loras, changed, addWords) {
    this.rows = loras.map((lora) => new LoraRow(lora, changed, addWords));
    byId("loras").replaceChildren(...this.rows.map((row) => row.root));
    byId("loras_group").hidden = this.rows.length === 0;
    byId("find_lora").hidden = this.rows.length <= FEW_LORAS;
    byId("find_lora").addEventListener("input", () => this.find(byId("find_lora").value.toLowerCase()));
  }

  // Those that are used stay in sight.
  find(text) {
    for (const row of this.rows) row.root.hidden = !row.use.checked && !row.name.toLowerCase().includes(text);
  }

  // What the server is sent; undefined: this server has none.
  value(factor = 1) {
    if (this.rows.length === 0) return undefined;
    return this.used().map((row) => ({name: row.name, strength: row.strength() * factor}));
  }

  used() { return this.rows.filter((row) => row.use.checked); }

  clear() { this.rows.forEach((row) => row.clear()); }

  // Takes those of settings; returns the names that this server does not have.
  take(loras) {
    this.rows.forEach((row) => row.restore(false, 1));
    return loras.filter(({name, strength}) => {
      const row = this.rows.find((other) => other.name === name);
      row?.restore(true, strength);
      return !row;
    }).map(({name}) => name);
  }

  kept() { return Object.fromEntries(this.rows.map((row) => [row.name, [row.use.checked, row.number.value]])); }

  restore(kept) {
    for (const row of this.rows) if (kept?.[row.name]) row.restore(...kept[row.name]);
  }
}
