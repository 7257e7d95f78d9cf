#include "trireme/ps/internal/row_batch.h"

#include <algorithm>
#include <deque>

namespace trireme::ps {
namespace {

/// Checks a batch with `bytes_per_row` bytes per row, keys first.
ErrorKind rejection(std::span<const std::byte> bytes, std::uint32_t row_elements,
                    std::uint64_t bytes_per_row) {
  if (bytes.size() < sizeof(RowBatchHead)) return ErrorKind::kMalformed;
  const RowBatchHead head = RowBatchHead::of(bytes);
  if (head.row_elements != row_elements) return ErrorKind::kOutOfRange;
  if (bytes.size() != sizeof head + std::uint64_t{head.num_rows} * bytes_per_row)
    return ErrorKind::kMalformed;
  const KeyBatch keys(bytes);
  for (std::uint32_t i = 1; i < keys.size(); ++i) {
    if (keys.key(i - 1) >= keys.key(i)) return ErrorKind::kMalformed;
  }
  return ErrorKind::kNone;
}

std::uint32_t saturated(std::uint64_t count) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(count, UINT32_MAX));
}

}  // namespace

ErrorKind key_rejection(std::span<const std::byte> bytes, std::uint32_t row_elements) {
  const ErrorKind error = rejection(bytes, row_elements, sizeof(std::uint64_t));
  if (error != ErrorKind::kNone) return error;
  // A small request must not produce a reply above the limit.
  const std::uint64_t num_rows = RowBatchHead::of(bytes).num_rows;
  return num_rows > 1 && num_rows * row_elements * sizeof(float) > kMostBatchBytes ? ErrorKind::kTooLarge
                                                                                   : ErrorKind::kNone;
}

ErrorKind row_rejection(std::span<const std::byte> bytes, std::uint32_t row_elements) {
  const ErrorKind error =
      rejection(bytes, row_elements, RowBatch::num_bytes(1, row_elements) - sizeof(RowBatchHead));
  if (error != ErrorKind::kNone) return error;
  const RowBatch rows(bytes);
  for (std::uint32_t i = 0; i < rows.size(); ++i) {
    if (rows.count(i) == 0) return ErrorKind::kOutOfRange;
  }
  return ErrorKind::kNone;
}

RowBatchWriter::RowBatchWriter(std::size_t num_rows, std::uint32_t row_elements)
    : head_{row_elements, static_cast<std::uint32_t>(num_rows)},
      words_(RowBatch::num_bytes(num_rows, row_elements) / sizeof(float)) {
  head_.write(std::as_writable_bytes(std::span(words_)));
}

std::span<float> RowBatchWriter::put(std::size_t i, std::uint64_t key, std::uint32_t count) {
  constexpr std::size_t kHead = 2, kKey = 2;  // in words
  std::memcpy(words_.data() + kHead + i * kKey, &key, sizeof key);
  std::memcpy(words_.data() + kHead + head_.num_rows * kKey + i, &count, sizeof count);
  const std::size_t rows = kHead + head_.num_rows * (kKey + 1);
  return std::span(words_).subspan(rows + i * head_.row_elements, head_.row_elements);
}

wire::Buffer RowBatchWriter::buffer() && { return in_buffer(std::move(words_)); }

wire::Buffer merged(std::span<const wire::Buffer> batches) {
  struct Place {
    std::uint64_t key;
    const RowBatch* batch;
    std::uint32_t row;
  };
  std::deque<RowBatch> views;  // a deque, because pointers to views must stay valid
  std::vector<Place> places;
  for (const wire::Buffer& batch : batches) {
    const RowBatch& view = views.emplace_back(batch.bytes());
    for (std::uint32_t i = 0; i < view.size(); ++i) places.push_back({view.key(i), &view, i});
  }
  const auto by_key = [](const Place& a, const Place& b) { return a.key < b.key; };
  std::stable_sort(places.begin(), places.end(), by_key);
  std::size_t num_rows = places.empty() ? 0 : 1;
  for (std::size_t i = 1; i < places.size(); ++i) num_rows += places[i - 1].key != places[i].key ? 1 : 0;
  RowBatchWriter writer(num_rows, views.front().row_elements());
  std::size_t row = 0;
  for (auto first = places.begin(); first != places.end(); ++row) {
    const auto end = std::upper_bound(first, places.end(), *first, by_key);
    std::uint64_t count = 0;
    for (auto place = first; place != end; ++place) count += place->batch->count(place->row);
    const std::span<float> sum = writer.put(row, first->key, saturated(count));
    const std::span<const float> values = first->batch->row(first->row);
    std::copy(values.begin(), values.end(), sum.begin());
    while (++first != end) {
      const std::span<const float> more = first->batch->row(first->row);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
    }
  }
  return std::move(writer).buffer();
}

wire::Buffer encoded_rows(const compress::Codec& codec, std::span<const std::byte> batch,
                          const compress::Codec::Options& options) {
  const std::uint32_t num_rows = RowBatchHead::of(batch).num_rows;
  const std::size_t plain = RowBatch::num_bytes(num_rows, 0);
  const AlignedFloats rows(batch.subspan(plain));
  const wire::Buffer encoded = in_buffer(codec, rows.get(), options);
  std::vector<std::byte> bytes(batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(plain));
  bytes.insert(bytes.end(), encoded.bytes().begin(), encoded.bytes().end());
  return wire::Buffer::of(std::move(bytes));
}

std::optional<wire::Buffer> decoded_rows(const compress::Codec& codec, std::span<const std::byte> bytes,
                                         std::uint32_t row_elements) {
  if (bytes.size() < sizeof(RowBatchHead)) return std::nullopt;
  const RowBatchHead head = RowBatchHead::of(bytes);
  const std::size_t plain = RowBatch::num_bytes(head.num_rows, 0);
  if (head.row_elements != row_elements || bytes.size() < plain) return std::nullopt;
  const std::size_t num_values = std::size_t{head.num_rows} * row_elements;
  if (!codec.fits(bytes.subspan(plain), num_values)) return std::nullopt;
  std::vector<float> words(RowBatch::num_bytes(head.num_rows, row_elements) / sizeof(float));
  std::memcpy(words.data(), bytes.data(), plain);
  codec.decode(bytes.subspan(plain), std::span(words).last(num_values));
  return in_buffer(std::move(words));
}

wire::Buffer key_batch(std::span<const std::uint64_t> keys, std::uint32_t row_elements) {
  std::vector<std::byte> bytes(sizeof(RowBatchHead) + keys.size_bytes());
  RowBatchHead{row_elements, static_cast<std::uint32_t>(keys.size())}.write(bytes);
  if (!keys.empty()) std::memcpy(bytes.data() + sizeof(RowBatchHead), keys.data(), keys.size_bytes());
  return wire::Buffer::of(std::move(bytes));
}

}  // namespace trireme::ps
