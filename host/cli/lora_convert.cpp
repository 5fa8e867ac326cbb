// atelier lora convert: one LoRA from a spelling to another.
#include <cstdio>

#include "host/cli/commands.h"
#include "host/cli/lora.h"
#include "host/files/file_reader.h"
#include "host/files/outputs.h"
#include "host/lora/convert.h"

namespace atelier::cli {

flags::CommandSpec lora_convert_command() {
  flags::CommandSpec command{
      "lora convert",
      "Writes a LoRA in the spelling of another program; factors keep their bits.\n"
      "With a model, names are checked against it, and told where a file has "
      "underscores for dots."};
  command.flags = lora_model_flags();
  command.flags.push_back(lora_format_flag(std::nullopt));
  command.flags.push_back(lora_dtype_flag("auto", "of the factors; auto: as they are"));
  command.positional = "FILE NEW_FILE";
  command.min_positional = 2;
  command.max_positional = 2;
  return command;
}

int run_lora_convert(std::span<const std::string> arguments) {
  const flags::CommandSpec command = lora_convert_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const flags::ParsedFlags flags = flags::parse_flags(command, arguments);
  const std::string& output = flags.positional()[1];
  const lora::Format format = lora::parse_format(flags.text("lora_format"));
  const lora::LoraFile file = lora::LoraFile::open(flags.positional()[0]);
  const auto model = open_named_model(flags);
  const lora::LayerNames names(model.get(), file.component());
  lora::check_output(file, output);
  files::refuse_to_replace("OUT", output);
  lora::convert(file, output, format, lora_dtype(flags), names);
  progress::Progress progress(progress::stderr_options(/*quiet=*/false));
  warn_of_unknown(progress, file);
  warn_of_format(progress, format);
  std::printf("%s: %s in the spelling %s\n", files::display_path(output).c_str(),
              count_text(file.layers().size(), "layer").c_str(), flags.text("lora_format").c_str());
  return 0;
}

}  // namespace atelier::cli
