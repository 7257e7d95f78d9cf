#include "cli/checkpoint.h"

#include <iostream>

#include "cli/checkpoint_inspect.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/checkpoint/weights_file.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

void check_target(const CheckpointArguments& arguments) {
  std::error_code error;
  require(!fs::is_directory(arguments.out, error), arguments.out,
          " is a folder; name the .safetensors file to write");
  require(arguments.force || !fs::exists(arguments.out, error), arguments.out,
          " exists already; choose another name, or replace it with --force");
}

void write(const CheckpointArguments& arguments, const std::string& from,
           const checkpoint::SafetensorsFile& file) {
  checkpoint::save_safetensors(arguments.out, file.tensors, file.metadata);
  std::cout << "wrote " << file.tensors.size() << (file.tensors.size() == 1 ? " tensor" : " tensors")
            << " of " << from << " to " << arguments.out << " (" << human_bytes(fs::file_size(arguments.out))
            << ")\n";
}

void export_weights(const CheckpointArguments& arguments) {
  check_target(arguments);
  const CheckpointPlace place = find_checkpoints(arguments.path);
  require(!place.is_file(), "trireme checkpoint export reads a checkpoint's folder, found the file ",
          place.path.string(), "; to convert a file, use: trireme checkpoint import");
  const fs::path& newest = place.checkpoints.back();
  const auto loaded = checkpoint::load_checkpoint(newest);
  const RunNames names = names_in_config(loaded.config);
  // "format" is what Python's readers of model hubs look for.
  write(arguments, newest.string(),
        {.tensors = checkpoint::weights_of(loaded),
         .metadata = {{"format", "pt"},
                      {"model", names.model},
                      {"run", names.run},
                      {"step", std::to_string(loaded.step)}}});
}

void import_weights(const CheckpointArguments& arguments) {
  check_target(arguments);
  write(arguments, arguments.path, checkpoint::load_weights_file(arguments.path));
}

}  // namespace

int run_checkpoint(const CheckpointArguments& arguments) {
  const ReportFormat format = arguments.json ? ReportFormat::kJson : ReportFormat::kText;
  if (arguments.action == "inspect") {
    inspect_checkpoints(find_checkpoints(arguments.path), format);
  } else if (arguments.action == "verify") {
    return verify_checkpoints(find_checkpoints(arguments.path), format) ? kExitOk : kExitData;
  } else if (arguments.action == "export") {
    export_weights(arguments);
  } else {
    import_weights(arguments);
  }
  return kExitOk;
}

}  // namespace trireme::cli
