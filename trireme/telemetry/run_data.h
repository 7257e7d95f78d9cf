#pragma once
// A run, read from its folder: the settings of config.toml, the curves of metrics.jsonl, the results of
// summary.json. For reports and listings. Reading changes nothing, and a running run can be read. A value.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/telemetry/curve.h"
#include "trireme/telemetry/sink.h"

namespace trireme::telemetry {

struct RunData {
  std::string name;  ///< of the folder: "fashion_mnist.2"
  /// Its end by end.json, or by the summary where no later step was taken; "running" while its process lives,
  /// "killed" when that ended without a record, "unfinished" when it is unknown.
  std::string status = "unfinished";
  std::optional<int> exit_code;      ///< where end.json has it
  std::string message;               ///< of the error that ended it, or the process that ended without a
                                     ///< record
  std::int64_t steps = 0;            ///< done; of an unfinished run the last one that was written down
  std::int64_t changed_unix_ns = 0;  ///< when the run ended or last wrote a file
  std::vector<std::pair<std::string, std::string>> config;  ///< "optimizer.lr", "0.05"; as in the file
  std::map<std::string, Curve> curves;                      ///< by the names of the fields: "loss"
  std::vector<std::string> measures;  ///< names of the results of evaluations: "test_accuracy", "test_loss"
  /// Changes by the run itself (train.adapt), and reasons: "step 40: shares 24 24 -> 30 18", "kept: ...".
  std::vector<std::pair<std::string, std::string>> decisions;
  Record summary;  ///< no fields when the run is unfinished

  /// The value of a key of config.toml; empty when it is not there.
  std::string setting(std::string_view key) const;
  /// The curve of that name; an empty one when nothing was measured.
  const Curve& curve(const std::string& name) const;
  /// A number of the summary, else the last of the curve of that name.
  std::optional<double> result(const std::string& name) const;
  /// Whether that number of the summary is a count.
  bool is_count(std::string_view name) const;
  /// A text of the summary; empty when it is not there.
  std::string result_text(std::string_view name) const;
};

/// Whether the folder holds the files of a run.
bool holds_run(const std::filesystem::path& folder);

/// How much of the metrics is read.
enum class Metrics {
  kAll,
  kEnd,  ///< the last megabyte, and the last evaluation at any place: the result of a run, not its course
};

/// Reads the run in that folder. Missing files leave their values empty; a last line that was cut off is left
/// out. Throws DataError, which names the file, when none of the files is there or one is damaged.
RunData read_run(const std::filesystem::path& folder, Metrics metrics = Metrics::kAll);

}  // namespace trireme::telemetry
