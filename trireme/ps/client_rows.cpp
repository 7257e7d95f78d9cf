#include <algorithm>
#include <cstring>

#include "trireme/base/text.h"
#include "trireme/ps/internal/client_work.h"
#include "trireme/ps/internal/restored_rows.h"
#include "trireme/ps/internal/row_batch.h"

namespace trireme::ps {
namespace {

/// Position of a key in the caller's list.
struct KeyPlace {
  PartitionId partition = 0;
  std::uint64_t key = 0;
  std::size_t place = 0;
  auto operator<=>(const KeyPlace&) const = default;
};
using KeyPlaces = std::span<const KeyPlace>;

/// By partition, then by key, equal keys in their original order.
std::vector<KeyPlace> sorted(const ClusterMap& map, TableId table, std::span<const std::uint64_t> keys) {
  std::vector<KeyPlace> places;
  places.reserve(keys.size());
  for (const std::uint64_t key : keys) places.push_back({map.partition_of(table, key), key, places.size()});
  std::sort(places.begin(), places.end());
  return places;
}

/// The leading places, which have the same key.
KeyPlaces first_key(KeyPlaces places) {
  std::size_t count = 1;
  while (count < places.size() && places[count].key == places[0].key) ++count;
  return places.first(count);
}

/// One request to a partition; a key is not split.
struct Batch {
  KeyPlaces places;
  std::size_t num_keys = 0;
};
std::vector<Batch> batches_of(KeyPlaces left, std::uint32_t row_elements) {
  const std::size_t most_keys =
      std::max<std::size_t>(1, kMostBatchBytes / (RowBatch::num_bytes(1, row_elements)));
  std::vector<Batch> batches;
  while (!left.empty()) {
    Batch batch;
    std::size_t count = 0;
    while (count < left.size() && left[count].partition == left[0].partition && batch.num_keys < most_keys) {
      count += first_key(left.subspan(count)).size();
      ++batch.num_keys;
    }
    batch.places = left.first(count);
    batches.push_back(batch);
    left = left.subspan(count);
  }
  return batches;
}

wire::Buffer rows_of(const Batch& batch, RequestOp op, std::span<const float> rows,
                     std::uint32_t row_elements) {
  RowBatchWriter writer(batch.num_keys, row_elements);
  KeyPlaces left = batch.places;
  for (std::size_t i = 0; i < batch.num_keys; ++i) {
    const KeyPlaces same = first_key(left);
    const std::span<float> row = writer.put(
        i, same[0].key, static_cast<std::uint32_t>(std::min<std::size_t>(same.size(), UINT32_MAX)));
    const auto given = [&](const KeyPlace& at) {
      return rows.subspan(at.place * row_elements, row_elements);
    };
    const std::span<const float> first = given(op == RequestOp::kAssign ? same.back() : same.front());
    std::copy(first.begin(), first.end(), row.begin());
    for (std::size_t k = 1; k < same.size() && op == RequestOp::kPush; ++k) {
      for (std::size_t e = 0; e < row.size(); ++e) row[e] += given(same[k])[e];
    }
    left = left.subspan(same.size());
  }
  return std::move(writer).buffer();
}

}  // namespace

void ClientWork::add_rows(RequestOp op, TableId table, std::span<const std::uint64_t> keys,
                          std::span<const float> rows, Done done, PushOptions options) {
  const TableSpec* spec = find(table, TableKind::kSparse, done);
  if (spec == nullptr) return;
  const std::uint32_t elements = spec->rows.elements;
  if (rows.size() != keys.size() * elements)
    return fail(done, ErrorKind::kOutOfRange,
                text("push of ", rows.size(), " elements for ", keys.size(), " keys to table ", spec->name,
                     ", whose rows have ", elements));
  const std::vector<KeyPlace> places = sorted(map(), table, keys);
  const std::vector<Batch> batches = batches_of(places, elements);
  std::map<PartitionId, std::size_t> more;
  for (const Batch& batch : batches) ++more[batch.places[0].partition];
  if (!leaves_room(*spec, op, more, done)) return;
  const auto call = new_call(std::move(done), std::max<std::size_t>(batches.size(), 1), options.call());
  if (batches.empty()) return call->part_done(at_clock());
  Request request = request_of(op, table);
  request.lr = options.lr;
  for (const Batch& batch : batches) {
    const PartitionId id = batch.places[0].partition;
    add_values({id, id}, request, *spec, rows_of(batch, op, rows, elements), options.priority, call);
  }
  go_on();
}

void ClientWork::restore_rows(TableId table, PartitionId partition, wire::Buffer rows, Done done) {
  const TableSpec* spec = find(table, TableKind::kSparse, done);
  if (spec == nullptr) return;
  if (partition >= map().partitions.size() ||
      RestoredRows::rejection(*spec, rows.bytes()) != ErrorKind::kNone)
    return fail(done, ErrorKind::kOutOfRange,
                text(rows.size(), " bytes for partition ", partition, " are no rows of table ", spec->name));
  add_values({partition, partition}, request_of(RequestOp::kRestoreRows, table), *spec, std::move(rows), {},
             new_call(std::move(done), 1));
  go_on();
}

void ClientWork::pull_rows(TableId table, std::span<const std::uint64_t> keys, std::span<float> out,
                           Done done, CallOptions options) {
  const TableSpec* spec = find(table, TableKind::kSparse, done);
  if (spec == nullptr) return;
  const std::uint32_t elements = spec->rows.elements;
  if (out.size() != keys.size() * elements)
    return fail(done, ErrorKind::kOutOfRange,
                text("pull of ", out.size(), " elements for ", keys.size(), " keys of table ", spec->name,
                     ", whose rows have ", elements));
  const std::vector<KeyPlace> places = sorted(map(), table, keys);
  const std::vector<Batch> batches = batches_of(places, elements);
  const auto call = new_call(std::move(done), std::max<std::size_t>(batches.size(), 1), options);
  if (batches.empty()) return call->part_done(at_clock());
  for (const Batch& batch : batches) {
    const PartitionId id = batch.places[0].partition;
    OutgoingPull& pull = add_pull({id, id}, *spec, call, options);
    pull.out = out;
    pull.row_elements = elements;
    std::vector<std::uint64_t> unique;
    for (const KeyPlace& at : batch.places) {
      if (unique.empty() || unique.back() != at.key) unique.push_back(at.key);
      pull.places.emplace_back(static_cast<std::uint32_t>(unique.size() - 1), at.place);
    }
    pull.body = key_batch(unique, elements);
    pull.keys = hash_of_keys(id, pull.body.bytes());
    pull.num_values = unique.size() * elements;
  }
  go_on();
}

bool ClientWork::write_rows(const OutgoingPull& pull, const wire::Buffer& body) {
  const std::size_t row_bytes = pull.row_elements * sizeof(float);
  const std::size_t num_rows = pull.places.back().first + std::size_t{1};
  if (body.size() != num_rows * row_bytes) return false;
  if (pull.call->is_over()) return true;
  for (const auto& [row, place] : pull.places)
    std::memcpy(pull.out.data() + place * pull.row_elements, body.bytes().data() + row * row_bytes,
                row_bytes);
  return true;
}

}  // namespace trireme::ps
