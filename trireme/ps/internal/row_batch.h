#pragma once
// Rows of a sparse table as the body of a message or a part of a record. It contains the length and number of
// its rows; reading it needs no lookup, so that all readers agree:
//
//   u32 row_elements | u32 num_rows | u64 keys[n], rising | push, assign: u32 counts[n], f32
//   rows[n][row_elements]
//
// A pull has keys alone; its answer has f32 rows alone, of the keys that were asked for. Views; the bytes
// outlive them, and were found to be a batch before. Of a table that is pushed to with a codec, the rows of a
// message are encoded; those of a record never are.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "trireme/compress/codec.h"
#include "trireme/ps/internal/float_bytes.h"
#include "trireme/ps/messages.h"

namespace trireme::ps {

struct RowBatchHead {
  std::uint32_t row_elements = 0, num_rows = 0;

  /// Of at least sizeof(RowBatchHead) bytes.
  static RowBatchHead of(std::span<const std::byte> bytes) {
    RowBatchHead head;
    std::memcpy(&head, bytes.data(), sizeof head);
    return head;
  }
  void write(std::span<std::byte> bytes) const { std::memcpy(bytes.data(), this, sizeof *this); }
};

/// Of the rows of one pull or push of a client, unless it is a single row. Records may merge more.
inline constexpr std::size_t kMostBatchBytes = 1 << 20;

/// Why `bytes` are no keys to pull, or no rows to push, of rows of so many elements; kNone where they are.
ErrorKind key_rejection(std::span<const std::byte> bytes, std::uint32_t row_elements);
ErrorKind row_rejection(std::span<const std::byte> bytes, std::uint32_t row_elements);

class KeyBatch {
 public:
  explicit KeyBatch(std::span<const std::byte> bytes)
      : head_(RowBatchHead::of(bytes)), keys_(bytes.data() + sizeof(RowBatchHead)) {}
  std::uint32_t size() const { return head_.num_rows; }
  std::uint32_t row_elements() const { return head_.row_elements; }
  std::uint64_t key(std::size_t i) const {
    std::uint64_t key = 0;
    std::memcpy(&key, keys_ + i * sizeof key, sizeof key);
    return key;
  }

 private:
  RowBatchHead head_;
  const std::byte* keys_;
};

class RowBatch : public KeyBatch {
 public:
  explicit RowBatch(std::span<const std::byte> bytes)
      : KeyBatch(bytes),
        counts_(bytes.data() + sizeof(RowBatchHead) + size() * sizeof(std::uint64_t)),
        rows_(bytes.subspan(sizeof(RowBatchHead) + size() * kKeyBytes)) {}
  /// The number of times that pushes named the key.
  std::uint32_t count(std::size_t i) const {
    std::uint32_t count = 0;
    std::memcpy(&count, counts_ + i * sizeof count, sizeof count);
    return count;
  }
  std::span<const float> row(std::size_t i) const {
    return rows_.get().subspan(i * row_elements(), row_elements());
  }

  /// Bytes of a batch of so many rows.
  static std::size_t num_bytes(std::size_t num_rows, std::uint32_t row_elements) {
    return sizeof(RowBatchHead) + num_rows * (kKeyBytes + row_elements * sizeof(float));
  }

 private:
  static constexpr std::size_t kKeyBytes = sizeof(std::uint64_t) + sizeof(std::uint32_t);

  const std::byte* counts_;
  AlignedFloats rows_;
};

/// Makes a batch: rows are put in by rising key.
class RowBatchWriter {
 public:
  RowBatchWriter(std::size_t num_rows, std::uint32_t row_elements);
  /// The row of row i, zero until it is written.
  std::span<float> put(std::size_t i, std::uint64_t key, std::uint32_t count);
  wire::Buffer buffer() &&;

 private:
  RowBatchHead head_;
  std::vector<float> words_;  ///< floats may be read and written here in place
};

/// The keys of all batches, each once, its rows added up in the order of the batches.
wire::Buffer merged(std::span<const wire::Buffer> batches);
/// A batch as it is pushed to a table with a codec: its rows, one after the other, are encoded.
wire::Buffer encoded_rows(const compress::Codec& codec, std::span<const std::byte> batch,
                          const compress::Codec::Options& options);
/// The batch again; none where `bytes` cannot be one of rows of so many elements. It was not looked at
/// otherwise.
std::optional<wire::Buffer> decoded_rows(const compress::Codec& codec, std::span<const std::byte> bytes,
                                         std::uint32_t row_elements);
/// Keys to pull; they rise.
wire::Buffer key_batch(std::span<const std::uint64_t> keys, std::uint32_t row_elements);

}  // namespace trireme::ps
