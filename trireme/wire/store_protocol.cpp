#include "trireme/wire/internal/store_protocol.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace trireme::wire::store {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are written as they lie in memory");

template <class Bytes>
void append(std::string& out, const Bytes& bytes) {
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

template <class Number>
void append_number(std::string& out, Number number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void append_text(std::string& out, std::string_view text) {
  append_number(out, static_cast<std::uint32_t>(text.size()));
  out += text;
}

/// Reads fields from the front. After a missing field, all further ones are invalid too.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  std::string_view take(std::size_t count) {
    if (count > left_.size()) valid_ = false;
    if (!valid_) return {};
    const std::string_view result = left_.substr(0, count);
    left_.remove_prefix(count);
    return result;
  }
  template <class Number>
  Number number() {
    Number result{};
    const std::string_view bytes = take(sizeof result);
    if (valid_) std::memcpy(&result, bytes.data(), sizeof result);
    return result;
  }
  template <class Bytes>
  Bytes array() {
    Bytes result{};
    const std::string_view bytes = take(result.size());
    if (valid_) std::memcpy(result.data(), bytes.data(), result.size());
    return result;
  }
  std::string_view text() { return take(number<std::uint32_t>()); }
  void expect(std::string_view text) { valid_ = take(text.size()) == text && valid_; }
  bool valid() const { return valid_; }
  bool at_end() const { return valid_ && left_.empty(); }

 private:
  std::string_view left_;
  bool valid_ = true;
};

/// The beginning of a frame, with memory for its payload and proof: values may be large, and are copied only
/// once.
std::string frame_of(std::size_t payload_bytes) {
  std::string frame;
  frame.reserve(kLengthBytes + payload_bytes + kProofBytes);
  append_number(frame, static_cast<std::uint32_t>(payload_bytes));
  return frame;
}

std::size_t bytes_of(std::string_view text) { return sizeof(std::uint32_t) + text.size(); }

}  // namespace

Digest proof(const Secret& secret, Side speaker, const Nonce& of_server, const Nonce& of_client) {
  std::string message = speaker == Side::kServer ? "trireme store server" : "trireme store client";
  append(message, of_server);
  append(message, of_client);
  return hmac_sha256(secret, {message});
}

Session::Session(const Secret& secret, Side side, const Nonce& of_server, const Nonce& of_client)
    : secret_(&secret),
      mine_(direction(side, of_server, of_client)),
      theirs_(direction(side == Side::kServer ? Side::kClient : Side::kServer, of_server, of_client)) {}

Session::Direction Session::direction(Side speaker, const Nonce& of_server, const Nonce& of_client) const {
  Direction result{.prefix = speaker == Side::kServer ? "trireme store server frame"
                                                      : "trireme store client frame"};
  append(result.prefix, of_server);
  append(result.prefix, of_client);
  return result;
}

Digest Session::next_proof(Direction& direction, std::string_view frame) const {
  std::string number;
  append_number(number, direction.number++);
  return hmac_sha256(*secret_, {direction.prefix, number, frame});
}

std::string Session::seal(std::string frame) {
  append(frame, next_proof(mine_, frame));
  return frame;
}

std::optional<std::string_view> Session::open(std::string_view sealed) {
  if (sealed.size() < kLengthBytes + kProofBytes) return std::nullopt;
  const std::string_view frame = sealed.substr(0, sealed.size() - kProofBytes);
  const auto its_proof = Reader(sealed.substr(frame.size())).array<Digest>();
  if (!equal(its_proof, next_proof(theirs_, frame))) return std::nullopt;
  return frame.substr(kLengthBytes);
}

std::string encode_hello(const Nonce& nonce) {
  std::string result(kGreeting);
  append(result, nonce);
  return result;
}

std::optional<Nonce> decode_hello(std::string_view bytes) {
  Reader reader(bytes);
  reader.expect(kGreeting);
  const auto nonce = reader.array<Nonce>();
  return reader.at_end() ? std::optional(nonce) : std::nullopt;
}

std::string encode_answer(const Answer& answer) {
  std::string result = encode_hello(answer.nonce);
  append(result, answer.proof);
  return result;
}

std::optional<Answer> decode_answer(std::string_view bytes) {
  Reader reader(bytes);
  reader.expect(kGreeting);
  const Answer answer{.nonce = reader.array<Nonce>(), .proof = reader.array<Digest>()};
  return reader.at_end() ? std::optional(answer) : std::nullopt;
}

std::string encode_verdict(const Digest* proof) {
  std::string result(1, proof == nullptr ? '\0' : '\1');
  append(result, proof == nullptr ? Digest{} : *proof);
  return result;
}

std::optional<Digest> decode_verdict(std::string_view bytes) {
  Reader reader(bytes);
  reader.expect("\1");
  const auto digest = reader.array<Digest>();
  return reader.at_end() ? std::optional(digest) : std::nullopt;
}

std::string encode(const Request& request) {
  std::size_t bytes = sizeof request.action + sizeof request.number + sizeof(std::uint32_t);
  for (const auto& key : request.keys) bytes += bytes_of(key);
  std::string out = frame_of(bytes + bytes_of(request.value) + bytes_of(request.expected));
  append_number(out, request.action);
  append_number(out, request.number);
  append_number(out, static_cast<std::uint32_t>(request.keys.size()));
  for (const auto& key : request.keys) append_text(out, key);
  append_text(out, request.value);
  append_text(out, request.expected);
  return out;
}

std::optional<Request> decode_request(std::string_view bytes) {
  Reader reader(bytes);
  Request request{.action = reader.number<Action>(), .number = reader.number<std::int64_t>()};
  const auto num_keys = reader.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < num_keys && reader.valid(); ++i) request.keys.emplace_back(reader.text());
  request.value = reader.text();
  request.expected = reader.text();
  const bool known = request.action >= Action::kSet && request.action <= Action::kCount;
  const bool many = request.action == Action::kCheck || request.action == Action::kWait;
  const bool fits = many || request.keys.size() == (request.action == Action::kCount ? 0 : 1);
  if (!reader.at_end() || !known || !fits) return std::nullopt;
  return request;
}

std::string encode(const Reply& reply) {
  std::string out = frame_of(sizeof reply.kind + sizeof reply.number + bytes_of(reply.value));
  append_number(out, reply.kind);
  append_number(out, reply.number);
  append_text(out, reply.value);
  return out;
}

std::optional<Reply> decode_reply(std::string_view bytes) {
  Reader reader(bytes);
  Reply reply{.kind = reader.number<Reply::Kind>(), .number = reader.number<std::int64_t>()};
  reply.value = reader.text();
  if (!reader.at_end() || reply.kind > Reply::Kind::kError) return std::nullopt;
  return reply;
}

std::uint32_t decode_length(std::string_view bytes) { return Reader(bytes).number<std::uint32_t>(); }

}  // namespace trireme::wire::store
