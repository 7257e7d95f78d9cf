#pragma once
// The results of a run, as one small JSON file that appears at once when the run ends. Field names are a
// contract with scripts: test_accuracy, train_loss, samples_per_s, world_size, steps, wall_s,
// checkpoint_stall_s, peak_rss_bytes, weights_xxh3, status, config. Stateless.

#include <filesystem>
#include <string>

#include "trireme/telemetry/sink.h"

namespace trireme::telemetry {

/// Writes the record's fields as an indented JSON object, atomically. Throws DataError.
void write_summary(const std::filesystem::path& path, const Record& summary);

/// The same again from the file's content: numbers and texts. Throws DataError that names `path` when it is
/// no summary.
Record parse_summary(const std::string& content, const std::filesystem::path& path);

}  // namespace trireme::telemetry
