#include "atelier/config_fields.h"

#include <algorithm>

namespace atelier {

ConfigFields& ConfigFields::ignored(Names names) {
  for (const std::string_view name : names) rows_.push_back({.name = std::string(name)});
  return *this;
}

ConfigFields& ConfigFields::read(Names names) {
  for (const std::string_view name : names) read(ConfigField{.name = std::string(name)});
  return *this;
}

ConfigFields& ConfigFields::read(ConfigField field) {
  field.use = ConfigField::Use::kRead;
  rows_.push_back(std::move(field));
  return *this;
}

ConfigFields& ConfigFields::fixed(std::string name, std::vector<ConfigValue> values) {
  rows_.push_back({std::move(name), ConfigField::Use::kFixed, std::move(values), {}, {}, {}});
  return *this;
}

ConfigFields& ConfigFields::told(std::string name, std::vector<ConfigValue> values) {
  rows_.push_back({std::move(name), ConfigField::Use::kTold, std::move(values), {}, {}, {}});
  return *this;
}

ConfigFields& ConfigFields::needed(std::string name, std::vector<ConfigValue> values,
                                   std::vector<ConfigValue> classes) {
  fixed(std::move(name), std::move(values));
  rows_.back().needed_by = std::move(classes);
  return *this;
}

ConfigFields& ConfigFields::of_diffusers(std::vector<ConfigValue> class_names) {
  fixed("_class_name", std::move(class_names));
  return ignored({"_diffusers_version", "_name_or_path", "_use_default_values", "_commit_hash",
                  "quantization_config", "quantization_config.*"});
}

ConfigFields& ConfigFields::of_transformers(std::vector<ConfigValue> model_types) {
  fixed("model_type", std::move(model_types));
  // The encoder of such a model says it beforehand.
  if (!find("is_encoder_decoder")) fixed("is_encoder_decoder", {false});
  fixed("tie_last_hidden_states", {nullptr, true});  // behind the last norm
  // What it is, where it comes from and how it is stored, which the tensors tell, too.
  ignored({"architectures", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash",
           "dtype", "torch_dtype", "quantization_config", "quantization_config.*", "auto_map.*",
           "use_bfloat16", "torchscript", "tf_legacy_loss", "unsloth_fixed", "unsloth_version"});
  // How it is run and initialised.
  // An encoder that must not be a decoder says it beforehand.
  if (!find("is_decoder")) ignored({"is_decoder"});
  ignored({"use_cache", "initializer_range", "attention_dropout", "attn_implementation",
           "_attn_implementation", "_attn_implementation_autoset", "return_dict",
           "output_attentions", "output_hidden_states", "chunk_size_feed_forward",
           "gradient_checkpointing", "max_position_embeddings", "cache_implementation",
           "add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder"});
  // Its tokens, its head and what that is trained for.
  ignored({"bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
           "forced_bos_token_id", "forced_eos_token_id", "tokenizer_class", "prefix",
           "tie_word_embeddings", "id2label", "id2label.*", "label2id", "label2id.*", "num_labels",
           "problem_type", "finetuning_task", "task_specific_params", "task_specific_params.*"});
  // Generation: nothing is generated.
  return ignored({"do_sample",
                  "early_stopping",
                  "max_length",
                  "min_length",
                  "max_new_tokens",
                  "num_beams",
                  "num_beam_groups",
                  "num_return_sequences",
                  "temperature",
                  "top_k",
                  "top_p",
                  "typical_p",
                  "repetition_penalty",
                  "length_penalty",
                  "diversity_penalty",
                  "no_repeat_ngram_size",
                  "encoder_no_repeat_ngram_size",
                  "bad_words_ids",
                  "suppress_tokens",
                  "begin_suppress_tokens",
                  "output_scores",
                  "return_dict_in_generate",
                  "remove_invalid_values",
                  "exponential_decay_length_penalty"});
}

ConfigFields& ConfigFields::rope_of_transformers() {
  read({"rope_theta"});
  for (const std::string home : {"rope_parameters", "rope_scaling"}) {
    fixed(home, {nullptr});
    fixed(home + ".rope_type", {"default", "mrope"});
    fixed(home + ".type", {"default", "mrope"});
    // Which channels turn with which of three positions; those of text are all the same, and a
    // family that sees pictures says beforehand that it reads it.
    if (!find(home + ".mrope_section")) ignored({home + ".mrope_section"});
    rows_.push_back({.name = home + ".rope_theta", .use = ConfigField::Use::kRead});
  }
  return *this;
}

ConfigFields& ConfigFields::add(const ConfigFields& fields, const std::string& prefix,
                                const std::string& unless) {
  for (ConfigField row : fields.rows_) {
    row.name = prefix + row.name;
    if (!row.only_with.empty()) row.only_with = prefix + row.only_with;
    row.unless = unless;
    rows_.push_back(std::move(row));
  }
  return *this;
}

const ConfigField* ConfigFields::find(std::string_view name) const {
  const ConfigField* with_rest = nullptr;
  for (const ConfigField& row : rows_) {
    if (row.name == name) return &row;
    const bool has_rest = row.name.ends_with('*');
    if (has_rest && !with_rest && name.starts_with(row.name.substr(0, row.name.size() - 1)))
      with_rest = &row;
  }
  return with_rest;
}

bool has_fields(const TensorIndex::Config& config, std::string_view prefix) {
  const auto first = config.lower_bound(prefix);
  return first != config.end() && first->first.starts_with(prefix);
}

std::optional<double> rope_theta(const TensorIndex& checkpoint, const std::string& prefix) {
  // Fields of the older spelling stand in for all of the newer.
  const bool is_older = has_fields(checkpoint.config(), prefix + "rope_scaling.");
  const std::string home = prefix + (is_older ? "rope_scaling." : "rope_parameters.");
  if (const auto theta = checkpoint.config_real(home + "rope_theta")) return theta;
  return checkpoint.config_real(prefix + "rope_theta");
}

}  // namespace atelier
