#include "cli/checkpoint.h"

#include <iostream>

#include "cli/checkpoint_inspect.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/checkpoint_report.h"
#include "trireme/checkpoint/consolidate.h"
#include "trireme/checkpoint/weights_file.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

void check_target(const fs::path& out, const CheckpointArguments& arguments) {
  std::error_code error;
  require(!fs::is_directory(out, error), out.string(), " is a folder; name the .safetensors file to write");
  for (const char* other : {".pt", ".pth", ".bin", ".ckpt"})
    require(out.extension() != other, out.string(),
            " has the extension of another format; expected a .safetensors file, such as ",
            fs::path(out).replace_extension(".safetensors").string(),
            ", which PyTorch reads with safetensors.torch.load_file()");
  require(arguments.force || !fs::exists(out, error), out.string(),
          " exists already; choose another name, or replace it with --force");
}

void say_written(std::size_t num_tensors, const std::string& from, const std::string& to,
                 std::uint64_t bytes) {
  std::cout << "wrote " << num_tensors << (num_tensors == 1 ? " tensor" : " tensors") << " of " << from
            << " to " << to << " (" << human_bytes(bytes) << ")\n";
}

void export_weights(const CheckpointArguments& arguments) {
  check_target(arguments.out, arguments);
  const CheckpointPlace place = find_checkpoints(arguments.path);
  require(!place.is_file(), "trireme checkpoint export reads a checkpoint's folder, found the file ",
          place.path.string(), "; to convert a file, use: trireme checkpoint import");
  const fs::path& newest = place.checkpoints.back();
  const checkpoint::CheckpointContents contents = checkpoint::inspect_checkpoint(newest);
  const RunNames names = names_in_config(contents.config);
  // Python readers of model hubs require "format".
  const checkpoint::ExportOptions options{.metadata = {{"format", "pt"},
                                                       {"model", names.model},
                                                       {"run", names.run},
                                                       {"step", std::to_string(contents.step)}},
                                          .max_file_bytes = arguments.max_shard_bytes};
  for (const fs::path& path : checkpoint::files_of_export(newest, arguments.out, options))
    check_target(path, arguments);
  const checkpoint::ExportedFiles written = checkpoint::export_weights(newest, arguments.out, options);
  const std::string more =
      written.files.size() > 1 ? text(" and ", written.files.size() - 1, " more files") : "";
  say_written(written.num_tensors, newest.string(), written.files.front().string() + more, written.bytes);
}

void import_weights(const CheckpointArguments& arguments) {
  check_target(arguments.out, arguments);
  const checkpoint::SafetensorsFile file = checkpoint::load_weights_file(arguments.path);
  checkpoint::save_safetensors(arguments.out, file.tensors, file.metadata);
  say_written(file.tensors.size(), arguments.path, arguments.out, fs::file_size(arguments.out));
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
