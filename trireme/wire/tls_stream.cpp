#include "trireme/wire/internal/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/wire/internal/socket_stream.h"

namespace trireme::wire {
namespace {

// Room for a certificate chain and its handshake. An unauthenticated peer may not send more.
constexpr std::size_t kMaxTlsHandshakeBytes = 16 << 10;
constexpr std::size_t kMaxOutputBytes = 256 << 10;
constexpr std::size_t kRecordBytes = 16 << 10;
constexpr std::size_t kReadAheadBytes = 64 << 10;

/// The latest error in OpenSSL's queue; clears the queue.
std::string tls_error() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "it has broken the connection off" : reason;
}

int wire_write(BIO* bio, const char* data, int count) {
  static_cast<TlsStream::Wire*>(BIO_get_data(bio))->output.append(data, static_cast<std::size_t>(count));
  BIO_clear_retry_flags(bio);
  return count;
}

int wire_read(BIO* bio, char* data, int count) {
  auto& wire = *static_cast<TlsStream::Wire*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  if (!wire.secured && wire.num_read >= kMaxTlsHandshakeBytes) return -1;
  const ssize_t got = ::recv(wire.socket.fd(), data, static_cast<std::size_t>(count), MSG_DONTWAIT);
  if (got > 0) wire.num_read += static_cast<std::size_t>(got);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long wire_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

const BIO_METHOD* wire_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "trireme channel");
    BIO_meth_set_write(made, wire_write);
    BIO_meth_set_read(made, wire_read);
    BIO_meth_set_ctrl(made, wire_control);
    return made;
  }();
  return method;
}

void use_file(bool used, const char* what, const std::filesystem::path& file) {
  require(used, "cannot use ", file.string(), " as ", what, ": ", tls_error(), "; expected a PEM file");
}

/// TLS 1.3 only, without session resumption.
SSL_CTX* new_context() {
  SSL_CTX* context = SSL_CTX_new(TLS_method());
  if (context == nullptr) throw InternalError("no TLS context: " + tls_error());
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAheadBytes);
  return context;
}

constexpr const char* kCipherOfKeys = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kItsNumber = {0x13, 0x01};
constexpr std::array<unsigned char, 1> kSessions = {'t'};  // OpenSSL needs it for pre-shared keys

/// TLS 1.3 represents a pre-shared key as a session. Null if out of memory.
SSL_SESSION* session_with(SSL* ssl, const std::string& role_and_name) {
  const auto& context = *static_cast<const TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  const Digest key = hmac_sha256(context.key_of(role_and_name), {"trireme TLS"});
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kItsNumber.data());
  if (session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set1_id_context(session, kSessions.data(), kSessions.size()) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
    return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int use_key(SSL* ssl, const EVP_MD*, const unsigned char** name, std::size_t* length, SSL_SESSION** session) {
  const auto& context = *static_cast<const TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  *session = session_with(ssl, context.self());
  *name = reinterpret_cast<const unsigned char*>(context.self().data());
  *length = context.self().size();
  return *session == nullptr ? 0 : 1;
}

int find_key(SSL* ssl, const unsigned char* name, std::size_t length, SSL_SESSION** session) {
  *session = session_with(ssl, std::string(reinterpret_cast<const char*>(name), length));
  return *session == nullptr ? 0 : 1;
}

}  // namespace

TlsContext::TlsContext(Secret secret, const PeerIdentity& self)
    : context_(new_context()), secret_(std::move(secret)), self_(self.role + "." + self.name) {
  SSL_CTX_set_ciphersuites(context_, kCipherOfKeys);
  SSL_CTX_set_app_data(context_, this);
  SSL_CTX_set_session_id_context(context_, kSessions.data(), kSessions.size());
  SSL_CTX_set_psk_use_session_callback(context_, use_key);
  SSL_CTX_set_psk_find_session_callback(context_, find_key);
}

TlsContext::TlsContext(const TlsFiles& files) : context_(new_context()) {
  // The destructor does not run if the code below throws.
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> guard(context_, SSL_CTX_free);
  require_owners_file(files.key, "the key of the certificate");
  use_file(SSL_CTX_load_verify_locations(context_, files.authority.c_str(), nullptr) == 1,
           "the certificate of the cluster's authority", files.authority);
  use_file(SSL_CTX_use_certificate_chain_file(context_, files.certificate.c_str()) == 1, "a certificate",
           files.certificate);
  use_file(SSL_CTX_use_PrivateKey_file(context_, files.key.c_str(), SSL_FILETYPE_PEM) == 1 &&
               SSL_CTX_check_private_key(context_) == 1,
           "the key of the certificate", files.key);
  // AES-128-GCM first: the fastest cipher of TLS 1.3 on processors with AES instructions.
  SSL_CTX_set_ciphersuites(context_,
                           "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  SSL_CTX_set_max_cert_list(context_, kMaxTlsHandshakeBytes);
  [[maybe_unused]] const auto* mine = guard.release();
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

TlsStream::TlsStream(const TlsContext& context, Socket socket, bool listening)
    : wire_{.socket = std::move(socket)}, ssl_(SSL_new(context.get())), by_key_(!context.has_certificates()) {
  BIO* bio = ssl_ == nullptr ? nullptr : BIO_new(wire_method());
  if (bio == nullptr) {
    SSL_free(ssl_);
    throw InternalError("no TLS connection: " + tls_error());
  }
  BIO_set_data(bio, &wire_);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  listening ? SSL_set_accept_state(ssl_) : SSL_set_connect_state(ssl_);
}

TlsStream::~TlsStream() { SSL_free(ssl_); }

Flow TlsStream::flow_of(int result) {
  const int error = SSL_get_error(ssl_, result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return Flow::kNotNow;
  if (error == SSL_ERROR_ZERO_RETURN) return Flow::kEnded;
  const long verdict = SSL_get_verify_result(ssl_);
  failure_ = by_key_ || verdict == X509_V_OK
                 ? tls_error()
                 : text("its certificate: ", X509_verify_cert_error_string(verdict));
  ERR_clear_error();
  return Flow::kFailed;
}

Flow TlsStream::secure() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  Flow flow = result == 1 ? Flow::kMoved : flow_of(result);
  if (flow == Flow::kMoved && by_key_ && SSL_session_reused(ssl_) != 1) {
    failure_ = "it does not know the secret";
    flow = Flow::kFailed;
  }
  const Flow sent = flush();  // also sends an alert with the reason
  wire_.secured = flow == Flow::kMoved;
  return flow == Flow::kMoved && sent == Flow::kFailed ? sent : flow;
}

std::optional<PeerIdentity> TlsStream::identity() const {
  X509* certificate = SSL_get0_peer_certificate(ssl_);
  if (certificate == nullptr) return std::nullopt;
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS) continue;
    const std::string whole(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                            static_cast<std::size_t>(ASN1_STRING_length(name->d.dNSName)));
    const auto dot = whole.find('.');
    const bool plain = std::ranges::all_of(whole, [](char c) { return c > ' ' && c <= '~'; });
    if (dot == std::string::npos || dot == 0 || dot + 1 == whole.size() || !plain) return std::nullopt;
    return PeerIdentity{.role = whole.substr(0, dot), .name = whole.substr(dot + 1)};
  }
  return std::nullopt;
}

Moved TlsStream::read(std::span<const iovec> parts) {
  std::size_t count = 0;
  ERR_clear_error();
  for (const iovec& part : parts) {
    for (std::size_t at = 0; at < part.iov_len;) {
      std::size_t got = 0;
      const int result = SSL_read_ex(ssl_, static_cast<char*>(part.iov_base) + at, part.iov_len - at, &got);
      at += got;
      count += got;
      if (result == 1) continue;
      may_have_more_ = false;
      if (count > 0) return {.flow = Flow::kMoved, .bytes = count};
      return {.flow = flow_of(result)};
    }
  }
  may_have_more_ = true;
  return {.flow = Flow::kMoved, .bytes = count};
}

Moved TlsStream::write(std::span<const iovec> parts) {
  if (has_output()) {
    const Flow flow = flush();
    if (flow != Flow::kMoved) return {.flow = flow};
  }
  ERR_clear_error();
  std::array<char, kRecordBytes> record;
  std::size_t count = 0;
  std::size_t part = 0, at = 0;
  while (part < parts.size() && wire_.output.size() < kMaxOutputBytes) {
    // Small parts share a record, such as a header and its payload.
    std::size_t filled = 0;
    const char* from = record.data();
    if (parts[part].iov_len - at >= kRecordBytes) {
      from = static_cast<const char*>(parts[part].iov_base) + at;
      filled = kRecordBytes;
      at += filled;
    }
    while (from == record.data() && part < parts.size() && filled < kRecordBytes) {
      const std::size_t run = std::min(parts[part].iov_len - at, kRecordBytes - filled);
      std::memcpy(record.data() + filled, static_cast<const char*>(parts[part].iov_base) + at, run);
      filled += run;
      at += run;
      if (at < parts[part].iov_len) break;
      ++part;
      at = 0;
    }
    if (part < parts.size() && at == parts[part].iov_len) {
      ++part;
      at = 0;
    }
    std::size_t written = 0;
    const int result = SSL_write_ex(ssl_, from, filled, &written);
    if (result != 1 || written != filled) return {.flow = flow_of(result)};
    count += filled;
  }
  if (flush() == Flow::kFailed) return {.flow = Flow::kFailed};
  return {.flow = Flow::kMoved, .bytes = count};
}

Flow TlsStream::flush() {
  while (has_output()) {
    int error = 0;
    const Moved sent = moved(::send(wire_.socket.fd(), wire_.output.data() + wire_.output_sent,
                                    wire_.output.size() - wire_.output_sent, MSG_DONTWAIT | MSG_NOSIGNAL),
                             error);
    if (sent.flow == Flow::kFailed) failure_ = std::strerror(error);
    if (sent.flow != Flow::kMoved) return sent.flow;
    wire_.output_sent += sent.bytes;
    if (wire_.output_sent < wire_.output.size()) continue;
    wire_.output.clear();
    wire_.output_sent = 0;
  }
  return Flow::kMoved;
}

}  // namespace trireme::wire
