#pragma once
// Rows of a sparse table with all that belongs to them, on their way from a checkpoint back to a partition.
// They are the body of a request and a part of a record:
//
//   RestoredHead | rows, each a RowHead, its floats (values, then the optimizer's state), and zeros up to a
//   multiple of 16 bytes.
//
// They have this form in pages and in files, too, except for `last_clock`. Here it is the number of steps
// since the last push of the row, since clocks are of one cluster. A view; the bytes outlive it, and are
// validated before.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "trireme/ps/internal/row_store.h"
#include "trireme/ps/messages.h"
#include "trireme/ps/table.h"

namespace trireme::ps {

struct RestoredHead {
  std::uint32_t row_bytes = 0, num_rows = 0;
  std::uint32_t of_candidates = 0;  ///< keys that are not admitted yet: no floats
  std::uint32_t begins = 0;         ///< the partition's present content of the table is removed first

  /// Of at least sizeof(RestoredHead) bytes.
  static RestoredHead of(std::span<const std::byte> bytes) {
    RestoredHead head;
    std::memcpy(&head, bytes.data(), sizeof head);
    return head;
  }
};

/// Of a row, or of a candidate, of this table.
inline std::size_t restored_row_bytes(const TableSpec& spec, bool of_candidates) {
  const std::size_t values = of_candidates ? 0 : spec.rows.elements;
  const std::size_t floats = values + optimizer_rule(spec.optimizer.name).state_elements(values);
  return RowPages(sizeof(RowHead) + floats * sizeof(float)).row_bytes();
}

class RestoredRows {
 public:
  explicit RestoredRows(std::span<const std::byte> bytes)
      : head_(RestoredHead::of(bytes)), rows_(bytes.subspan(sizeof head_)) {}

  /// Why `bytes` are no rows of this table; kNone where they are.
  static ErrorKind rejection(const TableSpec& spec, std::span<const std::byte> bytes) {
    if (bytes.size() < sizeof(RestoredHead)) return ErrorKind::kMalformed;
    const RestoredHead head = RestoredHead::of(bytes);
    if (head.of_candidates > 1 || head.begins > 1) return ErrorKind::kMalformed;
    if (head.row_bytes != restored_row_bytes(spec, head.of_candidates == 1)) return ErrorKind::kOutOfRange;
    const std::size_t size = sizeof head + std::size_t{head.num_rows} * head.row_bytes;
    return bytes.size() == size ? ErrorKind::kNone : ErrorKind::kMalformed;
  }
  /// Such bytes; `rows` is as many as they are.
  static std::vector<std::byte> write(RestoredHead head, std::span<const std::byte> rows) {
    head.num_rows = static_cast<std::uint32_t>(rows.size() / head.row_bytes);
    std::vector<std::byte> bytes(sizeof head + rows.size());
    std::memcpy(bytes.data(), &head, sizeof head);
    if (!rows.empty()) std::memcpy(bytes.data() + sizeof head, rows.data(), rows.size());
    return bytes;
  }

  std::uint32_t size() const { return head_.num_rows; }
  bool of_candidates() const { return head_.of_candidates == 1; }
  bool begins() const { return head_.begins == 1; }
  RowHead head(std::size_t i) const {
    RowHead head;
    std::memcpy(&head, rows_.data() + i * head_.row_bytes, sizeof head);
    return head;
  }
  void copy_floats(std::size_t i, std::span<float> out) const {
    if (out.empty()) return;
    std::memcpy(out.data(), rows_.data() + i * head_.row_bytes + sizeof(RowHead), out.size_bytes());
  }

 private:
  RestoredHead head_;
  std::span<const std::byte> rows_;
};

}  // namespace trireme::ps
