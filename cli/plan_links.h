#pragma once
// `trireme plan --links`: links of hosts that `trireme topology --json` has measured.

#include <filesystem>
#include <string>

#include "trireme/train/estimate/link_levels.h"

namespace trireme::cli {

/// The slowest link within a host and between hosts, of the first `num_ranks` ranks of the file. Throws
/// DataError: not the output of `trireme topology --json`; InvalidArgument: fewer ranks, or hosts with
/// different numbers of them.
train::LinkLevels read_links(const std::filesystem::path& file, int num_ranks);

/// "2 hosts of 2 ranks: 25 us and 1.2 GB/s within, 1000 us and 0.012 GB/s between".
std::string links_in_words(const train::LinkLevels& links, int num_ranks);

}  // namespace trireme::cli
