#include "trireme/wire/store_client.h"

#include <algorithm>
#include <array>
#include <thread>

#include "trireme/wire/internal/store_protocol.h"
#include "trireme/wire/user_key.h"

namespace trireme::wire {
namespace {

using store::Action;
using store::Reply;
using store::Request;

// A waiting call releases the connection this often, for other calls of its process.
constexpr double kTurn_s = 0.25;
constexpr auto kTryAgain = std::chrono::milliseconds(20);

/// Appends the next `bytes` bytes of the socket.
void receive_more(std::string& result, const Socket& socket, std::size_t bytes, const Deadline& deadline) {
  const std::size_t before = result.size();
  result.resize(before + bytes);
  receive_all(socket, std::as_writable_bytes(std::span(result)).subspan(before), deadline);
}

std::string receive(const Socket& socket, std::size_t bytes, const Deadline& deadline) {
  std::string result;
  receive_more(result, socket, bytes, deadline);
  return result;
}

void send(const Socket& socket, const std::string& bytes, const Deadline& deadline) {
  send_all(socket, std::as_bytes(std::span(bytes)), deadline);
}

StoreClientOptions with_proof(StoreClientOptions options) {
  options.secret = secret_at(options.endpoint, options.secret);
  return options;
}

}  // namespace

Secret secret_at(const Endpoint& endpoint, const Secret& secret) {
  require(secret.role().empty(), "the secret of the job is the key of ", secret.role(),
          " at a parameter server: ranks take that in TRIREME_PS_SECRET_FILE");
  if (!secret.empty()) return secret;
  require(
      is_loopback(endpoint), "the store at ", endpoint.text(),
      " can be reached from other hosts, and the job has no secret: give the same one to all of its ranks, "
      "in TRIREME_SECRET or in a file that TRIREME_SECRET_FILE (trireme launch: --secret-file) names, made "
      "for instance with: (umask 077; head -c 32 /dev/urandom | base64 > FILE). Where all ranks share one "
      "host, set MASTER_ADDR to 127.0.0.1 instead");
  return user_key();
}

struct StoreClient::Connection {
  Socket socket;
  store::Session session;
};

/// A reply that owns its value.
struct StoreClient::Answer {
  Reply::Kind kind;
  std::int64_t number;
  std::string value;
};

/// Not a timed mutex: ThreadSanitizer does not model its locking.
class StoreClient::Turn {
 public:
  Turn(StoreClient& client, const Deadline& deadline) : client_(client) {
    std::unique_lock lock(client_.mutex_);
    mine_ = client_.turn_over_.wait_until(lock, deadline.at(), [&] { return !client_.in_turn_; });
    if (mine_) client_.in_turn_ = true;
  }
  ~Turn() {
    if (!mine_) return;
    {
      const std::lock_guard lock(client_.mutex_);
      client_.in_turn_ = false;
    }
    client_.turn_over_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool is_mine() const { return mine_; }

 private:
  StoreClient& client_;
  bool mine_ = false;
};

StoreClient::StoreClient(StoreClientOptions options)
    : has_secret_(!options.secret.empty()), options_(with_proof(std::move(options))) {
  const auto deadline = Deadline::after_s(options_.timeout_s);
  while (true) {
    if (auto socket = try_connect(options_.endpoint, deadline)) {
      connection_ = introduce(std::move(*socket), deadline);
      return;
    }
    if (deadline.expired()) {
      throw NobodyServes(text("no process serves the store at ", options_.endpoint.text(), " within ",
                              human_duration(options_.timeout_s)));
    }
    std::this_thread::sleep_for(kTryAgain);
  }
}

StoreClient::~StoreClient() = default;

std::unique_ptr<StoreClient::Connection> StoreClient::introduce(Socket socket,
                                                                const Deadline& deadline) const {
  const std::string where = options_.endpoint.text();
  const auto of_server = store::decode_hello(receive(socket, store::kHelloBytes, deadline));
  if (!of_server) {
    throw CommError(text("what answers at ", where,
                         " is no store of this version of trireme: another program listens there"));
  }
  const Nonce own = random_nonce();
  const auto proof_of = [&](store::Side side) {
    return store::proof(options_.secret, side, *of_server, own);
  };
  send(socket, store::encode_answer({own, proof_of(store::Side::kClient)}), deadline);
  const auto verdict = store::decode_verdict(receive(socket, store::kVerdictBytes, deadline));
  if (!verdict || !equal(*verdict, proof_of(store::Side::kServer))) {
    throw CommError(
        text("the store at ", where, verdict ? " does not know" : " rejects this process: it has not",
             " the secret that this process has", has_secret_ ? "" : " (none)",
             "; give all ranks and launchers of a job the same (TRIREME_SECRET, TRIREME_SECRET_FILE, "
             "--secret-file), and each job its own port"));
  }
  return std::make_unique<Connection>(
      Connection{std::move(socket), store::Session(options_.secret, store::Side::kClient, *of_server, own)});
}

void StoreClient::set(const std::string& key, const std::string& value, double timeout_s) {
  call({.action = Action::kSet, .keys = {key}, .value = value}, timeout_s);
}

std::optional<std::string> StoreClient::get(const std::string& key, double timeout_s) {
  Answer answer = call({.action = Action::kGet, .keys = {key}}, timeout_s);
  if (answer.kind == Reply::Kind::kNo) return std::nullopt;
  return std::move(answer.value);
}

std::int64_t StoreClient::add(const std::string& key, std::int64_t number, double timeout_s) {
  return call({.action = Action::kAdd, .number = number, .keys = {key}}, timeout_s).number;
}

bool StoreClient::check(const std::vector<std::string>& keys, double timeout_s) {
  return call({.action = Action::kCheck, .keys = keys}, timeout_s).kind == Reply::Kind::kYes;
}

bool StoreClient::wait(const std::vector<std::string>& keys, double timeout_s) {
  const auto deadline = Deadline::after_s(timeout_s);
  while (true) {
    const double turn_s = std::min(kTurn_s, deadline.remaining_s());
    const Request request{
        .action = Action::kWait, .number = static_cast<std::int64_t>(turn_s * 1000), .keys = keys};
    if (call(request, options_.timeout_s, turn_s).kind == Reply::Kind::kYes) return true;
    if (deadline.expired()) return false;
  }
}

std::string StoreClient::compare_set(const std::string& key, const std::string& expected,
                                     const std::string& value, double timeout_s) {
  return call({.action = Action::kCompareSet, .keys = {key}, .value = value, .expected = expected}, timeout_s)
      .value;
}

bool StoreClient::remove(const std::string& key, double timeout_s) {
  return call({.action = Action::kDelete, .keys = {key}}, timeout_s).kind == Reply::Kind::kYes;
}

std::int64_t StoreClient::num_keys(double timeout_s) {
  return call({.action = Action::kCount, .keys = {}}, timeout_s).number;
}

void StoreClient::disconnect() {
  const Turn turn(*this, Deadline::after_s(options_.timeout_s));
  if (turn.is_mine()) connection_.reset();
}

StoreClient::Answer StoreClient::call(const Request& request, double timeout_s, double reply_takes_s) {
  std::string message = store::encode(request);
  require(message.size() <= store::kMaxFrameBytes, "a request of ", human_bytes(message.size()),
          " is too large for a store; at most ", human_bytes(store::kMaxFrameBytes), " are possible");
  const auto deadline = Deadline::after_s(timeout_s + reply_takes_s);
  const Turn turn(*this, deadline);
  try {
    if (!turn.is_mine()) throw CommError("other calls of this process wait for it");
    Answer answer = exchange(std::move(message), deadline);
    if (answer.kind == Reply::Kind::kError)
      throw InvalidArgument(text("key '", join(request.keys), "' ", answer.value));
    return answer;
  } catch (const CommError& error) {
    if (turn.is_mine()) connection_.reset();  // a late reply to this request may still arrive on it
    throw CommError(text("the store at ", options_.endpoint.text(), " has not done what was asked within ",
                         human_duration(timeout_s), ": ", error.what()));
  }
}

StoreClient::Answer StoreClient::exchange(std::string message, const Deadline& deadline) {
  if (!connection_) {
    auto socket = try_connect(options_.endpoint, deadline);
    if (!socket) throw CommError("no process listens there");
    connection_ = introduce(std::move(*socket), deadline);
  }
  auto& [socket, session] = *connection_;
  send(socket, session.seal(std::move(message)), deadline);
  std::string sealed = receive(socket, store::kLengthBytes, deadline);
  const std::size_t length = store::decode_length(sealed);
  // A reply has at most one value and a few bytes around it.
  if (length > store::kMaxFrameBytes) throw CommError("what it sent is no reply");
  receive_more(sealed, socket, length + store::kProofBytes, deadline);
  const auto payload = session.open(sealed);
  if (!payload) {
    throw CommError(
        "what came is not the reply that it sent: its proof is wrong, so that something on the way has "
        "changed, repeated or inserted it");
  }
  const auto reply = store::decode_reply(*payload);
  if (!reply) throw CommError("what it sent is no reply");
  // The value reuses the memory of the frame: it may be large.
  const auto begin = static_cast<std::size_t>(reply->value.data() - sealed.data());
  sealed.resize(begin + reply->value.size());
  sealed.erase(0, begin);
  return {.kind = reply->kind, .number = reply->number, .value = std::move(sealed)};
}

}  // namespace trireme::wire
