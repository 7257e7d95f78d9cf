// The files of a run's folder, separated by the byte 0x1f: config.toml, metrics.jsonl, summary.json,
// end.json, run.lock, goodput.json, in this order. A file without a part in the input does not exist.
#include <array>

#include "tests/fuzz/reading.h"
#include "trireme/telemetry/goodput.h"
#include "trireme/telemetry/run_data.h"
#include "trireme/telemetry/run_end.h"

using namespace trireme;

extern "C" int fuzz_run_folder(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  static constexpr std::array<const char*, 6> kFiles = {"config.toml", "metrics.jsonl", "summary.json",
                                                        "end.json",    "run.lock",      "goodput.json"};
  const auto parts = fuzz::parts_of(fuzz::text_in(data, size), kFiles.size());
  for (std::size_t i = 0; i < kFiles.size(); ++i) {
    if (i < parts.size() && !parts[i].empty())
      folder.put(kFiles[i], parts[i]);
    else
      std::filesystem::remove(folder.path() / kFiles[i]);
  }
  for (const auto metrics : {telemetry::Metrics::kAll, telemetry::Metrics::kEnd}) {
    fuzz::is_read([&] {
      const telemetry::RunData run = telemetry::read_run(folder.path(), metrics);
      run.setting("run.name");
      run.result("test_accuracy");
    });
  }
  fuzz::is_read([&] { telemetry::read_run_end(folder.path() / "end.json"); });
  fuzz::is_read([&] {
    if (auto goodput = telemetry::read_goodput(folder.path() / "goodput.json"))
      telemetry::describe(telemetry::continued(std::move(*goodput), /*step=*/7));
  });
  return 0;
}
