// The settings that a picture or a clip says it was made with: text chunks of PNG, and the comment of other files.

const latin = new TextDecoder("latin1");

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The keyword and the text of a chunk, by the PNG specification, 11.3.4.
async function textOfChunk(type, bytes) {
  const zero = (from) => bytes.indexOf(0, from);
  const end = zero(0);
  const keyword = latin.decode(bytes.subarray(0, end));
  if (type === "tEXt") return [keyword, latin.decode(bytes.subarray(end + 1))];
  if (type === "zTXt") return [keyword, latin.decode(await inflate(bytes.subarray(end + 2)))];
  const isPacked = bytes[end + 1] === 1;
  const text = bytes.subarray(zero(zero(end + 3) + 1) + 1);
  return [keyword, new TextDecoder().decode(isPacked ? await inflate(text) : text)];
}

async function textsOfPng(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const texts = {};
  for (let at = 8; at + 12 <= bytes.length;) {
    const length = view.getUint32(at);
    const type = latin.decode(bytes.subarray(at + 4, at + 8));
    if (at + 12 + length > bytes.length) break;
    if (["tEXt", "zTXt", "iTXt"].includes(type)) {
      const [keyword, text] = await textOfChunk(type, bytes.subarray(at + 8, at + 8 + length));
      texts[keyword] = text;
    }
    at += 12 + length;
  }
  return texts;
}

// JPEG, WebP and MP4 have one comment, an object in ASCII, whole in one place.
function textsOfComment(bytes) {
  const text = latin.decode(bytes);
  const begin = text.indexOf('{"parameters":');
  const found = begin < 0 ? null : /^\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}/.exec(text.slice(begin, begin + (1 << 20)));
  return found ? JSON.parse(found[0]) : {};
}

// "1.5" and "true" as what they are; other values are texts.
function valueOf(text) {
  return /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : text;
}

const PARAMETERS = {
  "Steps": "num_inference_steps", "CFG scale": "cfg_scale", "CFG scale 2": "cfg_scale_2", "Seed": "seed",
  "Denoising strength": "denoising_strength",
};

// The form of other programs: the prompt, "Negative prompt: …", and a line "Steps: …, Seed: …".
function settingsOfParameters(text) {
  const lines = text.trim().split("\n");
  const last = lines.at(-1).startsWith("Steps: ") ? lines.pop() : "";
  const [prompt, negative = ""] = lines.join("\n").split(/(?:^|\n)Negative prompt: /);
  const settings = {prompt, negative_prompt: negative};
  for (const [, name, value] of last.matchAll(/([\w ]+): ("(?:[^"\\]|\\.)*"|[^,]*)(?:, |$)/g)) {
    if (name === "Size") [settings.width, settings.height] = value.split("x").map(Number);
    else if (PARAMETERS[name]) settings[PARAMETERS[name]] = name === "Seed" ? value : valueOf(value);
  }
  const loras = [...prompt.matchAll(/<lora:([^:>]+):?([^:>]*)>/g)];
  if (loras.length > 0) {
    settings.loras = loras.map(([, name, strength]) => ({name, strength: strength === "" ? 1 : Number(strength)}));
    settings.prompt = prompt.replace(/ ?<lora:[^>]*>/g, "").trim();
  }
  return settings;
}

// What a file says about how it was made; null: nothing.
async function settingsOfFile(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const isPng = latin.decode(bytes.subarray(1, 4)) === "PNG";
  try {
    const texts = isPng ? await textsOfPng(bytes) : textsOfComment(bytes);
    if (texts.atelier) return parseJson(texts.atelier);
    if (texts.parameters) return settingsOfParameters(texts.parameters);
  } catch {
    return null;  // a damaged file says nothing
  }
  return null;
}
