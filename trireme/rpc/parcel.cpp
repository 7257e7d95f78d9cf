#include "trireme/rpc/parcel.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "trireme/wire/fields.h"

namespace trireme::rpc {
namespace {

// Limit of a head, without the bytes that the layers below add.
constexpr std::size_t kMaxHeadBytes = wire::Message::kMaxHeadBytes - 64;
constexpr std::size_t kAlignment = 64;
// Replaces the size of the table if head, table and fields are the first part of the body.
constexpr std::uint32_t kInBody = ~std::uint32_t{0};

/// The table: it precedes the head and the fields.
struct Layout {
  std::uint32_t head_bytes = 0;
  std::vector<std::uint64_t> attachments = {};
  std::vector<RefPass> references = {};
  std::vector<std::byte> annex = {};
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.head_bytes, self.attachments, self.references, self.annex);
  }
};

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  const std::size_t at = bytes.size();
  bytes.resize(at + more.size());
  if (!more.empty()) std::memcpy(bytes.data() + at, more.data(), more.size());
}

/// Removes the first `count` bytes; nullopt: there are fewer.
std::optional<std::span<const std::byte>> take(std::span<const std::byte>& bytes, std::uint64_t count) {
  if (count > bytes.size()) return std::nullopt;
  const auto first = bytes.first(count);
  bytes = bytes.subspan(count);
  return first;
}

template <class Number>
bool take_number(std::span<const std::byte>& bytes, Number& number) {
  const auto taken = take(bytes, sizeof number);
  if (taken) std::memcpy(&number, taken->data(), sizeof number);
  return taken.has_value();
}

}  // namespace

std::size_t Parcel::num_bytes() const {
  std::size_t bytes = fields.size() + annex.size() + references.size() * sizeof(RefPass);
  for (const auto& each : attachments) bytes += aligned(each.size()) + sizeof(std::uint64_t);
  return bytes;
}

wire::Message pack(std::uint16_t kind, std::vector<std::byte> head, const Parcel& parcel) {
  Layout layout{.head_bytes = static_cast<std::uint32_t>(head.size()),
                .references = parcel.references,
                .annex = parcel.annex};
  for (const auto& each : parcel.attachments) layout.attachments.push_back(each.size());
  const std::vector<std::byte> table = wire::encode(layout);
  const auto table_bytes = static_cast<std::uint32_t>(table.size());
  std::vector<std::byte> start;
  start.reserve(sizeof table_bytes + table.size() + head.size() + parcel.fields.size());
  append(start, std::as_bytes(std::span(&table_bytes, 1)));
  append(start, table);
  append(start, head);
  append(start, parcel.fields);
  wire::Message message{.kind = kind};
  std::span<const std::byte> in_body;  // the start, if it is too long for a head
  if (start.size() <= kMaxHeadBytes) {
    message.head = std::move(start);
    if (parcel.attachments.empty()) return message;
    if (parcel.attachments.size() == 1) {
      message.body = parcel.attachments.front();
      return message;
    }
  } else {
    const auto elsewhere = std::pair{kInBody, static_cast<std::uint64_t>(start.size())};
    message.head = wire::encode(elsewhere);
    in_body = start;
  }
  std::size_t bytes = aligned(in_body.size());
  for (const auto& each : parcel.attachments) bytes += aligned(each.size());
  const std::shared_ptr<std::byte[]> memory = std::make_shared_for_overwrite<std::byte[]>(bytes);
  std::size_t at = 0;
  const auto put = [&](std::span<const std::byte> part) {
    if (!part.empty()) std::memcpy(memory.get() + at, part.data(), part.size());
    std::memset(memory.get() + at + part.size(), 0, aligned(part.size()) - part.size());
    at += aligned(part.size());
  };
  put(in_body);
  for (const auto& each : parcel.attachments) put(each.bytes());
  message.body = wire::Buffer(memory, {memory.get(), bytes});
  return message;
}

std::optional<Unpacked> unpack(const wire::Message& message) {
  std::span<const std::byte> rest(message.head);
  std::uint32_t table_bytes = 0;
  std::uint64_t start_bytes = 0;
  std::size_t at = 0;  // offset in the body
  if (!take_number(rest, table_bytes)) return std::nullopt;
  const bool in_body = table_bytes == kInBody;
  if (in_body) {
    if (!take_number(rest, start_bytes) || !rest.empty()) return std::nullopt;
    rest = message.body.bytes();
    const auto start = take(rest, start_bytes);
    if (!start) return std::nullopt;
    rest = *start;
    at = std::min(aligned(start_bytes), message.body.size());
    if (!take_number(rest, table_bytes)) return std::nullopt;
  }
  const auto table = take(rest, table_bytes);
  auto layout = table ? wire::decode<Layout>(*table) : std::nullopt;
  const auto head = layout ? take(rest, layout->head_bytes) : std::nullopt;
  if (!head) return std::nullopt;
  Unpacked result{.head = *head};
  Parcel& parcel = result.parcel;
  parcel.fields.assign(rest.begin(), rest.end());
  parcel.references = std::move(layout->references);
  parcel.annex = std::move(layout->annex);
  const bool alone = !in_body && layout->attachments.size() == 1;
  for (const std::uint64_t count : layout->attachments) {
    if (count > message.body.size() - at) return std::nullopt;
    parcel.attachments.push_back(message.body.part(at, count));
    at += std::min(alone ? count : aligned(count), message.body.size() - at);
  }
  if (at != message.body.size()) return std::nullopt;
  return result;
}

}  // namespace trireme::rpc
