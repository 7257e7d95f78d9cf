#pragma once
// Evidence as a small JSON file in a run's folder: "autopsy.json", of several hosts "autopsy.K.json" by their
// number. Functions without state; thread-safe.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/autopsy/evidence.h"

namespace trireme::autopsy {

/// Of one launcher: at most 1 MiB in at most 256 ranks. Ranks that others wait for, that ended first or stall
/// longest are kept.
std::string encode(const Evidence& evidence);
/// The same with all ranks.
std::string encode_all(const Evidence& evidence);
/// Throws DataError: no JSON, or a value of another type than the field has. Missing fields keep their
/// defaults.
Evidence decode(std::string_view json);

/// "autopsy.json", or "autopsy.3.json" of the host with that number.
std::string file_name(int node, int num_nodes);

/// The evidence of all hosts in the folder about the latest failure; empty where there is no such file.
/// Throws DataError that names the file.
std::optional<Evidence> read_evidence(const std::filesystem::path& folder);

}  // namespace trireme::autopsy
