#include "trireme/comm/internal/operation_report.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "trireme/base/text.h"

namespace trireme::comm {
namespace {

bool same_signature(const Operation& a, const Operation& b) {
  if (a.dtype != b.dtype || a.numel != b.numel || a.layout != b.layout) return false;
  if (!is_collective(a.kind)) return true;
  return a.kind == b.kind && a.peer == b.peer && a.reduce == b.reduce;
}

std::string signature(const Operation& operation, const std::vector<int>& world_ranks) {
  std::string result = name_of(operation.kind);
  if (operation.dtype != at::ScalarType::Undefined) {
    result += text(" of ", operation.numel, " ", name_of(operation.dtype));
  }
  if (operation.kind == OperationKind::kAllToAllCoalesced) {
    result += text(" of ", operation.numel, operation.numel == 1 ? " tensor" : " tensors");
    if (!operation.layout.empty()) result += text(" (", operation.layout, ")");
  } else if (!operation.layout.empty()) {
    result += text(" (rows ", operation.layout, ")");
  }
  if (reduces(operation.kind)) result += text(" (", name_of(operation.reduce), ")");
  if (operation.peer >= 0) {
    const char* role = operation.kind == OperationKind::kSend   ? " to rank "
                       : operation.kind == OperationKind::kRecv ? " from rank "
                                                                : " with root ";
    result += text(role, world_ranks[static_cast<std::size_t>(operation.peer)]);
  }
  return result;
}

/// Whether `theirs`, of another rank, is numbered in the same sequence as `operation` of `rank`.
bool numbered_alike(const Operation& operation, int rank, const Operation& theirs) {
  if (is_collective(operation.kind)) return is_collective(theirs.kind);
  const bool faces = (operation.kind == OperationKind::kSend && theirs.kind == OperationKind::kRecv) ||
                     (operation.kind == OperationKind::kRecv && theirs.kind == OperationKind::kSend);
  return faces && theirs.peer == rank;
}

/// Encodes an empty layout.
constexpr const char* kNoLayout = "-";

/// Layouts of other ranks are copied into messages, so only names of dtypes and numbers are valid.
bool is_layout(const std::string& layout) {
  constexpr std::size_t kMaxCharacters = 4096;
  return layout == kNoLayout ||
         (layout.size() <= kMaxCharacters && std::ranges::all_of(layout, [](unsigned char c) {
            return std::isalnum(c) != 0 || c == ',' || c == '*' || c == '_';
          }));
}

/// False if `number` is no value of the enumeration, which ends with `last`.
template <class Enum>
bool read_as(int number, Enum last, Enum& result) {
  if (number < 0 || number > static_cast<int>(last)) return false;
  result = static_cast<Enum>(number);
  return true;
}

}  // namespace

std::string encode_operations(const std::vector<Operation>& operations) {
  std::ostringstream out;
  for (const auto& o : operations) {
    out << o.number << ' ' << o.order << ' ' << static_cast<int>(o.kind) << ' ' << static_cast<int>(o.dtype)
        << ' ' << o.numel << ' ' << o.peer << ' ' << static_cast<int>(o.reduce) << ' '
        << static_cast<int>(o.state) << ' ' << (o.layout.empty() ? kNoLayout : o.layout) << '\n';
  }
  return std::move(out).str();
}

std::optional<std::vector<Operation>> decode_operations(const std::string& encoded, int size) {
  std::vector<Operation> result;
  std::istringstream in(encoded);
  Operation o;
  int kind = 0;
  int dtype = 0;
  int reduce = 0;
  int state = 0;
  bool readable = encoded.empty() || encoded.back() == '\n';
  while (in >> o.number >> o.order >> kind >> dtype >> o.numel >> o.peer >> reduce >> state >> o.layout) {
    readable = readable && is_layout(o.layout) && o.peer >= -1 && o.peer < size &&
               read_as(kind, OperationKind::kBarrier, o.kind) &&
               read_as(dtype, at::ScalarType::Undefined, o.dtype) &&
               read_as(reduce, ReduceOp::kProduct, o.reduce) &&
               read_as(state, OperationRecord::State::kFailed, o.state);
    if (o.layout == kNoLayout) o.layout.clear();
    result.push_back(o);
  }
  // Each operation is one line: a different count means a truncated text.
  const auto lines = static_cast<std::size_t>(std::ranges::count(encoded, '\n'));
  if (!readable || !in.eof() || result.size() != lines) return std::nullopt;
  return result;
}

std::vector<int> ranks_needed(const Operation& operation, int rank, int size) {
  if (!is_collective(operation.kind)) return {operation.peer};
  std::vector<int> result;
  for (int other = 0; other < size; ++other) {
    if (other != rank) result.push_back(other);
  }
  return result;
}

const Operation* counterpart(const Operation& operation, int rank, const std::vector<Operation>& of_other) {
  for (const auto& theirs : of_other) {
    if (theirs.order == operation.order && numbered_alike(operation, rank, theirs)) return &theirs;
  }
  return nullptr;
}

bool has_issued(const Operation& operation, int rank, const std::vector<Operation>& of_other) {
  return std::ranges::any_of(of_other, [&](const Operation& theirs) {
    return theirs.order >= operation.order && numbered_alike(operation, rank, theirs);
  });
}

bool has_finished(const Operation& operation, int rank, const std::vector<Operation>& of_other) {
  const Operation* theirs = counterpart(operation, rank, of_other);
  // Without a counterpart, the record of an older operation is gone, but it has finished.
  return theirs ? theirs->state == OperationRecord::State::kDone : has_issued(operation, rank, of_other);
}

std::vector<int> missing_ranks(const Operation& operation, int rank, const std::vector<int>& world_ranks,
                               const Published& published) {
  std::vector<int> missing;
  for (const int other : ranks_needed(operation, rank, static_cast<int>(world_ranks.size()))) {
    const auto found = published.find(other);
    if (found == published.end() || !has_issued(operation, rank, found->second))
      missing.push_back(world_ranks[static_cast<std::size_t>(other)]);
  }
  return missing;
}

std::string find_disagreement(const Operation& operation, int rank, const std::vector<int>& world_ranks,
                              const Published& published) {
  const int size = static_cast<int>(world_ranks.size());
  std::map<std::string, std::vector<std::string>> ranks_by_signature;
  const auto note = [&](int who, const Operation& what) {
    ranks_by_signature[signature(what, world_ranks)].push_back(
        std::to_string(world_ranks[static_cast<std::size_t>(who)]));
  };
  bool differs = false;
  for (const int other : ranks_needed(operation, rank, size)) {
    const auto found = published.find(other);
    if (found == published.end()) continue;
    const Operation* theirs = counterpart(operation, rank, found->second);
    if (!theirs) continue;
    note(other, *theirs);
    differs = differs || !same_signature(operation, *theirs);
  }
  if (!differs) return {};
  note(rank, operation);
  std::vector<std::string> sides;
  for (const auto& [what, ranks] : ranks_by_signature) {
    sides.push_back(text("rank ", join(ranks), " issued ", what));
  }
  return text("the ranks disagree: ", join(sides, "; "),
              ". Every rank has to issue the same operations in the same order");
}

}  // namespace trireme::comm
