#pragma once
// Comparison of the operations that the ranks of a group have issued: pure functions over lists of
// operations, and their text form for the store.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/internal/operation.h"

namespace trireme::comm {

/// The last operations of members, by group rank.
using Published = std::map<int, std::vector<Operation>>;

std::string encode_operations(const std::vector<Operation>& operations);
/// Of a member of a group of `size` ranks. Nothing of text that encode_operations did not write, or that
/// names a peer that is no rank of the group.
std::optional<std::vector<Operation>> decode_operations(const std::string& encoded, int size);

/// Group ranks that `operation` of `rank` needs, without `rank` itself.
std::vector<int> ranks_needed(const Operation& operation, int rank, int size);

/// The counterpart of `operation`, which `rank` issued, among the published operations `other`; null if not
/// there.
const Operation* counterpart(const Operation& operation, int rank, const std::vector<Operation>& of_other);

/// Whether a rank that has published these operations has come to `operation` of `rank`, and whether it has
/// done all its part of it.
bool has_issued(const Operation& operation, int rank, const std::vector<Operation>& of_other);
bool has_finished(const Operation& operation, int rank, const std::vector<Operation>& of_other);

/// World ranks that `operation` of `rank` needs and that are not known to have come to it.
std::vector<int> missing_ranks(const Operation& operation, int rank, const std::vector<int>& world_ranks,
                               const Published& published);

/// Names both sides when a rank issued another operation where `rank` issued this one; else empty.
std::string find_disagreement(const Operation& operation, int rank, const std::vector<int>& world_ranks,
                              const Published& published);

}  // namespace trireme::comm
