#include "trireme/wire/frame_decoder.h"

#define XXH_STATIC_LINKING_ONLY  // for the size of a state
#include <xxh_x86dispatch.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace trireme::wire {
namespace {

// Bytes are hashed in steps right after they were read, while they are in the cache.
constexpr std::size_t kStepBytes = 256 << 10;

std::size_t as_size(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }

}  // namespace

struct FrameDecoder::Hash {
  XXH3_state_t state;
};

FrameDecoder::FrameDecoder(FrameLimits limits, std::shared_ptr<BufferPool> pool)
    : limits_(limits), pool_(std::move(pool)), hash_(std::make_unique<Hash>()) {}
FrameDecoder::~FrameDecoder() = default;

std::span<std::byte> FrameDecoder::room() {
  if (current_ == nullptr) return {};
  const std::size_t at = as_size(header_.offset + payload_received_);
  const std::size_t left = as_size(header_.payload_bytes - payload_received_);
  const std::size_t head_bytes = current_->head.size();
  if (at < head_bytes) return std::span(current_->head).subspan(at, std::min(left, head_bytes - at));
  return current_->body.bytes.subspan(at - head_bytes, hashes_ ? std::min(left, kStepBytes) : left);
}

std::optional<Message> FrameDecoder::filled(std::size_t count) {
  if (current_ == nullptr || count == 0) return std::nullopt;
  if (hashes_ && !add_to_hash(room().first(count))) fail(FrameFault::kPayloadChecksum);
  payload_received_ += static_cast<std::int64_t>(count);
  if (fault_ != FrameFault::kNone || payload_received_ < header_.payload_bytes) return std::nullopt;
  return end_frame();
}

/// False if the payload is complete and its hash is wrong.
bool FrameDecoder::add_to_hash(std::span<const std::byte> bytes) {
  const bool whole = payload_received_ + static_cast<std::int64_t>(bytes.size()) == header_.payload_bytes;
  if (whole && payload_received_ == 0) return XXH3_64bits(bytes.data(), bytes.size()) == header_.payload_hash;
  XXH3_64bits_update(&hash_->state, bytes.data(), bytes.size());
  return !whole || XXH3_64bits_digest(&hash_->state) == header_.payload_hash;
}

std::optional<Message> FrameDecoder::take(std::span<const std::byte>& bytes) {
  while (fault_ == FrameFault::kNone && !bytes.empty()) {
    if (current_ == nullptr) {
      const std::size_t count = std::min(bytes.size(), kFrameHeaderBytes - num_header_bytes_);
      std::memcpy(header_bytes_.data() + num_header_bytes_, bytes.data(), count);
      num_header_bytes_ += count;
      bytes = bytes.subspan(count);
      if (num_header_bytes_ < kFrameHeaderBytes) return std::nullopt;
      begin_frame();
      if (current_ == nullptr || header_.payload_bytes > 0) continue;
      if (hashes_ && header_.payload_hash != payload_hash({}, {})) {
        fail(FrameFault::kPayloadChecksum);
        continue;
      }
      return end_frame();
    }
    const auto to = room();
    const std::size_t count = std::min(bytes.size(), to.size());
    std::memcpy(to.data(), bytes.data(), count);
    bytes = bytes.subspan(count);
    if (auto message = filled(count)) return message;
  }
  return std::nullopt;
}

void FrameDecoder::begin_frame() {
  FrameFault fault = decode(header_bytes_, limits_, header_);
  if (fault == FrameFault::kNone) fault = place(header_);
  if (fault != FrameFault::kNone) return fail(fault);
  payload_received_ = 0;
  XXH3_64bits_reset(&hash_->state);
}

FrameFault FrameDecoder::place(const FrameHeader& header) {
  const auto found = assemblies_.find(header.priority);
  if (header.offset > 0) {
    if (found == assemblies_.end()) return FrameFault::kOrder;
    Assembly& assembly = found->second;
    const bool follows = assembly.message == header.message && assembly.received_bytes == header.offset &&
                         assembly.total_bytes == header.total_bytes && assembly.kind == header.kind &&
                         assembly.head.size() == header.head_bytes;
    if (follows) current_ = &assembly;
    return follows ? FrameFault::kNone : FrameFault::kOrder;
  }
  std::uint64_t& last = last_message_[header.priority];
  if (found != assemblies_.end() || header.message <= last) return FrameFault::kOrder;
  if (header.total_bytes > limits_.max_unfinished_bytes - unfinished_bytes_) return FrameFault::kUnfinished;
  last = header.message;
  Assembly& assembly = assemblies_[header.priority];
  assembly = {.message = header.message, .kind = header.kind, .total_bytes = header.total_bytes};
  try {
    assembly.head.resize(header.head_bytes);
    const std::size_t body_bytes = as_size(header.total_bytes) - header.head_bytes;
    if (body_bytes > 0) assembly.body = pool_->take(body_bytes);
  } catch (const std::bad_alloc&) {
    return FrameFault::kNoMemory;
  }
  unfinished_bytes_ += header.total_bytes;
  current_ = &assembly;
  return FrameFault::kNone;
}

std::optional<Message> FrameDecoder::end_frame() {
  ++num_frames_;
  num_header_bytes_ = 0;
  Assembly& assembly = *std::exchange(current_, nullptr);
  assembly.received_bytes += header_.payload_bytes;
  if (assembly.received_bytes < assembly.total_bytes) return std::nullopt;
  unfinished_bytes_ -= assembly.total_bytes;
  Message message{.kind = assembly.kind,
                  .priority = header_.priority,
                  .head = std::move(assembly.head),
                  .body = Buffer(std::move(assembly.body.owner), assembly.body.bytes)};
  assemblies_.erase(header_.priority);
  return message;
}

void FrameDecoder::fail(FrameFault fault) {
  fault_ = fault;
  current_ = nullptr;
  assemblies_.clear();
  unfinished_bytes_ = 0;
}

}  // namespace trireme::wire
