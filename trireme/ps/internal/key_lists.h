#pragma once
// Lists of keys by their hash ("the same keys as last time": Li et al., OSDI 2014, section 4.1): a worker
// that pulls and pushes the rows of a batch sends their keys once, then the hash of them. Both sides cache
// the lists of one connection in bounded bytes, and evict the oldest first. A side without the list of a hash
// reports it, and gets the keys. Bodies are those of row_batch.h. One thread.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "trireme/ps/ids.h"
#include "trireme/ps/internal/hash.h"
#include "trireme/ps/internal/row_batch.h"

namespace trireme::ps {

/// Whether the body can be a batch of keys that are worth a hash, with the keys or without.
inline bool has_key_list(std::span<const std::byte> body) {
  return body.size() >= sizeof(RowBatchHead) && RowBatchHead::of(body).num_rows > 1;
}
inline std::size_t key_bytes_of(std::span<const std::byte> body) {
  return std::size_t{RowBatchHead::of(body).num_rows} * sizeof(std::uint64_t);
}

/// Of the keys of a batch that has them, in this partition; 0 where it has none.
inline std::uint64_t hash_of_keys(PartitionId partition, std::span<const std::byte> body) {
  if (!has_key_list(body) || body.size() - sizeof(RowBatchHead) < key_bytes_of(body)) return 0;
  const auto keys = body.subspan(sizeof(RowBatchHead), key_bytes_of(body));
  const std::uint64_t hash = hash_bytes(keys, hash_number(partition));
  return hash == 0 ? 1 : hash;
}

/// Whether a body is so much smaller without its keys that copying the rest is worth it: by an eighth.
inline bool is_mostly_keys(std::span<const std::byte> body) {
  return has_key_list(body) && key_bytes_of(body) * 8 >= body.size();
}

/// A batch without its keys, and with them again.
inline wire::Buffer without_keys(std::span<const std::byte> body) {
  const auto rest = body.subspan(sizeof(RowBatchHead) + key_bytes_of(body));
  std::vector<std::byte> bytes(body.begin(), body.begin() + sizeof(RowBatchHead));
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return wire::Buffer::of(std::move(bytes));
}
inline wire::Buffer with_keys(std::span<const std::byte> body, std::span<const std::byte> keys) {
  std::vector<std::byte> bytes;
  bytes.reserve(body.size() + keys.size());
  bytes.insert(bytes.end(), body.begin(), body.begin() + sizeof(RowBatchHead));
  bytes.insert(bytes.end(), keys.begin(), keys.end());
  bytes.insert(bytes.end(), body.begin() + sizeof(RowBatchHead), body.end());
  return wire::Buffer::of(std::move(bytes));
}

/// A server's state of one connection, per owner of partitions.
class KeyLists {
 public:
  static constexpr std::size_t kMostBytes = 8 << 20, kMostLists = 4096;

  void keep(std::uint64_t hash, std::span<const std::byte> keys) {
    if (keys.size() > kMostBytes || !lists_.try_emplace(hash, keys.begin(), keys.end()).second) return;
    order_.push_back(hash);
    num_bytes_ += keys.size();
    while (num_bytes_ > kMostBytes || order_.size() > kMostLists) {
      const auto oldest = lists_.find(order_.front());
      num_bytes_ -= oldest->second.size();
      lists_.erase(oldest);
      order_.pop_front();
    }
  }
  /// Empty where it is not known.
  std::span<const std::byte> find(std::uint64_t hash) const {
    const auto found = lists_.find(hash);
    return found == lists_.end() ? std::span<const std::byte>() : found->second;
  }
  std::size_t num_bytes() const { return num_bytes_; }

 private:
  std::map<std::uint64_t, std::vector<std::byte>> lists_;
  std::deque<std::uint64_t> order_;
  std::size_t num_bytes_ = 0;
};

}  // namespace trireme::ps
