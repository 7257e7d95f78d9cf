#include "trireme/wire/internal/handshake.h"

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

constexpr std::string_view kGreeting = "TRWH\3";  // the last character is the version
constexpr std::size_t kRecordHeaderBytes = 8;
constexpr std::size_t kMaxNameBytes = 64;
constexpr std::size_t kMaxReasonBytes = 200;
enum Step { kChallenge = 1, kHello, kWelcome };

template <class Number>
void put(std::string& out, Number number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

template <class Bytes>
void put_bytes(std::string& out, const Bytes& bytes) {
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<std::uint8_t>(text.size()));
  out += text;
}

std::string record(Step step, const std::string& body) {
  std::string out(kGreeting);
  put(out, static_cast<std::uint8_t>(step));
  put(out, static_cast<std::uint16_t>(body.size()));
  return out + body;
}

/// Peers without authentication may only put printable ASCII into a log.
bool is_printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

/// Reads fields from the front. After a missing field, all further ones are invalid too.
class RecordReader {
 public:
  explicit RecordReader(std::string_view bytes) : left_(bytes) {}
  std::string_view take(std::size_t count) {
    if (count > left_.size()) valid_ = false;
    if (!valid_) return {};
    const auto result = left_.substr(0, count);
    left_.remove_prefix(count);
    return result;
  }
  template <class Value>
  Value value() {
    Value result{};
    const auto bytes = take(sizeof result);
    if (valid_) std::memcpy(&result, bytes.data(), sizeof result);
    return result;
  }
  std::string text() { return std::string(take(value<std::uint8_t>())); }
  std::size_t left() const { return left_.size(); }
  bool at_end() const { return valid_ && left_.empty(); }
  bool valid() const { return valid_; }

 private:
  std::string_view left_;
  bool valid_ = true;
};

Handshake::Handshake(HandshakeOptions options) : options_(std::move(options)), nonce_(random_nonce()) {
  for (const auto& word : {options_.self.role, options_.self.name}) {
    require(word.size() <= kMaxNameBytes && is_printable(word), "role and name of a participant are '",
            options_.self.role, "' and '", options_.self.name, "'; expected at most ", kMaxNameBytes,
            " printable characters each");
  }
  if (!options_.listening) return;
  transcript_ = introduction();
  output_ = record(kChallenge, transcript_);
}

std::size_t Handshake::wanted() const {
  if (state_ != State::kUnderWay) return 0;
  if (input_.size() < kRecordHeaderBytes) return kRecordHeaderBytes - input_.size();
  std::uint16_t length = 0;
  std::memcpy(&length, input_.data() + kGreeting.size() + 1, sizeof length);
  return kRecordHeaderBytes + length - input_.size();
}

void Handshake::take(std::string_view bytes) {
  input_ += bytes;
  const std::size_t known = std::min(input_.size(), kGreeting.size());
  if (std::string_view(input_).substr(0, known) != kGreeting.substr(0, known)) {
    return refuse("no handshake", "it does not speak as a participant of this version does");
  }
  if (input_.size() < kRecordHeaderBytes) return;
  const std::size_t missing = wanted();
  if (input_.size() + missing > kMaxHandshakeBytes) {
    return refuse("handshake too long", text("it announces a handshake of ", input_.size() + missing,
                                             " bytes; at most ", kMaxHandshakeBytes, " are possible"));
  }
  if (missing > 0) return;
  const std::string whole = std::exchange(input_, {});
  take_record(whole[kGreeting.size()], std::string_view(whole).substr(kRecordHeaderBytes));
}

void Handshake::take_record(int step, std::string_view body) {
  if (options_.listening && step == kHello) return greeted(body);
  if (!options_.listening && step == kWelcome) return welcomed(body);
  if (!options_.listening && step == kChallenge && transcript_.empty()) return challenged(body);
  refuse("no handshake", "it has sent a part of the handshake that is not due");
}

const char* Handshake::words_of(Security::Kind kind) const {
  switch (kind) {
    case Security::Kind::kSecret:
      return "a secret";
    case Security::Kind::kTls:
      return "TLS";
    case Security::Kind::kLocal:
      return options_.kernel_names_user ? "no proof" : "the key of this user";
    default:
      return "no proof";
  }
}

std::string Handshake::wrong_secret() const {
  const char* reason =
      options_.security == Security::Kind::kLocal
          ? "it does not know the key of this user: it is of another user or container, which a "
            "secret (--secret-file) admits"
          : "it has another secret, or reaches this end by another address than it thinks";
  return text(reason, "; it says that it is '", peer_.role, " ", peer_.name, "'");
}

std::string Handshake::introduction() const {
  std::string out;
  put(out, options_.security);
  put_bytes(out, nonce_);
  put_text(out, options_.self.role);
  put_text(out, options_.self.name);
  put(out, options_.limits.max_message_bytes);
  put(out, options_.limits.max_unfinished_bytes);
  return out;
}

bool Handshake::take_introduction(RecordReader& reader) {
  const auto security = reader.value<Security::Kind>();
  reader.value<Nonce>();  // part of the transcript that the proof covers
  peer_ = {.role = reader.text(), .name = reader.text()};
  peer_limits_ = {.max_message_bytes = reader.value<std::int64_t>(),
                  .max_unfinished_bytes = reader.value<std::int64_t>()};
  const bool valid = reader.valid() && peer_.role.size() <= kMaxNameBytes && is_printable(peer_.role) &&
                     peer_.name.size() <= kMaxNameBytes && is_printable(peer_.name) &&
                     peer_limits_.max_message_bytes > 0 &&
                     peer_limits_.max_unfinished_bytes >= peer_limits_.max_message_bytes;
  if (!valid) {
    refuse("no handshake", "what it says of itself cannot be read");
  } else if (std::string_view(words_of(security)) != words_of(options_.security)) {
    refuse("other security", text("it expects ", words_of(security), ", this end ",
                                  words_of(options_.security), ": give both the same"));
    return false;
  }
  if (valid && options_.proved) peer_ = *options_.proved;
  return valid;
}

void Handshake::challenged(std::string_view body) {
  RecordReader reader(body);
  if (!take_introduction(reader)) return;
  if (!reader.at_end()) return refuse("no handshake", "its challenge has another length");
  std::string hello = introduction();
  put(hello, static_cast<std::uint8_t>(options_.shared_memory));
  transcript_ = std::string(body) + hello;
  put_bytes(hello, proof(false));
  output_ += record(kHello, hello);
}

void Handshake::greeted(std::string_view body) {
  RecordReader reader(body);
  if (!take_introduction(reader)) return;
  const auto wants_memory = reader.value<std::uint8_t>();
  const std::size_t proof_at = body.size() - reader.left();
  const auto its_proof = reader.value<Digest>();
  if (!reader.at_end()) return refuse("no handshake", "its hello has another length");
  transcript_ += body.substr(0, proof_at);
  if (!equal(its_proof, proof(false))) {
    return refuse("wrong secret", wrong_secret());
  }
  shared_memory_ = wants_memory == 1 && options_.shared_memory;
  std::string welcome;
  put(welcome, std::uint8_t{1});
  put(welcome, static_cast<std::uint8_t>(shared_memory_));
  put_bytes(welcome, proof(true));
  put_text(welcome, "");
  output_ += record(kWelcome, welcome);
  state_ = State::kDone;
}

void Handshake::welcomed(std::string_view body) {
  RecordReader reader(body);
  const auto verdict = reader.value<std::uint8_t>();
  const auto memory = reader.value<std::uint8_t>();
  const auto its_proof = reader.value<Digest>();
  const std::string reason = reader.text();
  if (!reader.at_end() || !is_printable(reason)) {
    return refuse("no handshake", "its welcome cannot be read");
  }
  if (verdict != 1) return refuse("refused by peer", "it says: " + reason);
  if (transcript_.empty()) return refuse("no handshake", "it welcomes before it has asked for anything");
  if (!equal(its_proof, proof(true))) {
    return refuse("wrong secret", text("it cannot prove that it knows ", words_of(options_.security)));
  }
  shared_memory_ = memory == 1;
  if (shared_memory_ && !options_.shared_memory) {
    return refuse("no handshake", "it offers shared memory that was not requested");
  }
  state_ = State::kDone;
}

/// The key of the connecting end's role and name, because that end may have no other key.
Secret Handshake::key_of_connection() const {
  const PeerIdentity& connecting = options_.listening ? peer_ : options_.self;
  return options_.secret.of_peer(connecting.role + "." + connecting.name);
}

Digest Handshake::proof(bool by_listener) const {
  if (options_.secret.empty()) return {};
  std::string message = by_listener ? "trireme channel listener" : "trireme channel connector";
  put_text(message, options_.listening_address);
  put_text(message, options_.connecting_address);
  return hmac_sha256(key_of_connection(), {message, transcript_});
}

void Handshake::refuse(const std::string& refusal, const std::string& reason) {
  state_ = State::kRefused;
  rejection_ = refusal;
  reason_ = reason;
  if (!options_.listening) return;
  std::string welcome;
  put(welcome, std::uint8_t{0});
  put(welcome, std::uint8_t{0});
  put_bytes(welcome, Digest{});
  put_text(welcome, reason.substr(0, kMaxReasonBytes));
  output_ = record(kWelcome, welcome);
}

}  // namespace trireme::wire
