#include "trireme/rpc/parcel.h"

#include <cstring>
#include <memory>

#include "trireme/wire/fields.h"

namespace trireme::rpc {
namespace {

// What a head may hold beside what the layers below put there.
constexpr std::size_t kMostHeadBytes = wire::Message::kMostHeadBytes - 64;
constexpr std::size_t kAlignment = 64;

struct Layout {
  std::uint32_t head_bytes = 0;
  std::uint32_t fields_in_head = 0;  ///< the others are in the body
  std::uint64_t fields_in_body = 0;
  std::vector<std::uint64_t> attachments = {};
  std::vector<RefPass> references = {};
  std::vector<std::byte> annex = {};
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.head_bytes, self.fields_in_head, self.fields_in_body, self.attachments,
                    self.references, self.annex);
  }
};

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  const std::size_t at = bytes.size();
  bytes.resize(at + more.size());
  if (!more.empty()) std::memcpy(bytes.data() + at, more.data(), more.size());
}

}  // namespace

std::size_t Parcel::num_bytes() const {
  std::size_t bytes = fields.size() + annex.size() + references.size() * sizeof(RefPass);
  for (const auto& each : attachments) bytes += each.size();
  return bytes;
}

wire::Message pack(std::uint16_t kind, std::vector<std::byte> head, const Parcel& parcel) {
  Layout layout{.head_bytes = static_cast<std::uint32_t>(head.size()),
                .references = parcel.references,
                .annex = parcel.annex};
  for (const auto& each : parcel.attachments) layout.attachments.push_back(each.size());
  layout.fields_in_head = static_cast<std::uint32_t>(parcel.fields.size());
  std::vector<std::byte> table = wire::encode(layout);
  const bool fields_fit = table.size() + head.size() + parcel.fields.size() + 4 <= kMostHeadBytes;
  if (!fields_fit) {
    layout.fields_in_head = 0;
    layout.fields_in_body = parcel.fields.size();
    table = wire::encode(layout);
  }
  wire::Message message{.kind = kind};
  const auto table_bytes = static_cast<std::uint32_t>(table.size());
  message.head.reserve(sizeof table_bytes + table.size() + head.size() + layout.fields_in_head);
  append(message.head, std::as_bytes(std::span(&table_bytes, 1)));
  append(message.head, table);
  append(message.head, head);
  if (fields_fit) append(message.head, parcel.fields);
  if (fields_fit && parcel.attachments.empty()) return message;
  if (fields_fit && parcel.attachments.size() == 1) {
    message.body = parcel.attachments.front();
    return message;
  }
  std::size_t bytes = fields_fit ? 0 : aligned(parcel.fields.size());
  for (const auto& each : parcel.attachments) bytes += aligned(each.size());
  const std::shared_ptr<std::byte[]> memory = std::make_shared_for_overwrite<std::byte[]>(bytes);
  std::size_t at = 0;
  const auto put = [&](std::span<const std::byte> part) {
    if (!part.empty()) std::memcpy(memory.get() + at, part.data(), part.size());
    std::memset(memory.get() + at + part.size(), 0, aligned(part.size()) - part.size());
    at += aligned(part.size());
  };
  if (!fields_fit) put(parcel.fields);
  for (const auto& each : parcel.attachments) put(each.bytes());
  message.body = wire::Buffer(memory, {memory.get(), bytes});
  return message;
}

std::optional<Unpacked> unpack(const wire::Message& message) {
  std::span<const std::byte> rest(message.head);
  std::uint32_t table_bytes = 0;
  if (rest.size() < sizeof table_bytes) return std::nullopt;
  std::memcpy(&table_bytes, rest.data(), sizeof table_bytes);
  rest = rest.subspan(sizeof table_bytes);
  if (table_bytes > rest.size()) return std::nullopt;
  auto layout = wire::decode<Layout>(rest.first(table_bytes));
  rest = rest.subspan(table_bytes);
  if (!layout || rest.size() != std::size_t{layout->head_bytes} + layout->fields_in_head) return std::nullopt;
  Unpacked result{.head = rest.first(layout->head_bytes)};
  Parcel& parcel = result.parcel;
  const auto fields = rest.subspan(layout->head_bytes);
  parcel.fields.assign(fields.begin(), fields.end());
  parcel.references = std::move(layout->references);
  parcel.annex = std::move(layout->annex);
  const bool alone = layout->fields_in_body == 0 && layout->attachments.size() == 1;
  std::size_t at = 0;
  const auto take = [&](std::uint64_t count) -> std::optional<wire::Buffer> {
    if (count > message.body.size() - at) return std::nullopt;
    wire::Buffer part = message.body.part(at, count);
    at += std::min(alone ? count : aligned(count), message.body.size() - at);
    return part;
  };
  if (layout->fields_in_body > 0) {
    const auto part = take(layout->fields_in_body);
    if (!part || layout->fields_in_head > 0) return std::nullopt;
    parcel.fields.assign(part->bytes().begin(), part->bytes().end());
  }
  for (const std::uint64_t count : layout->attachments) {
    auto part = take(count);
    if (!part) return std::nullopt;
    parcel.attachments.push_back(std::move(*part));
  }
  if (at != message.body.size()) return std::nullopt;
  return result;
}

}  // namespace trireme::rpc
