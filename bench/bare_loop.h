#pragma once
// What a channel and a parameter server are measured next to: a blocking loop over one socket, plain or with
// OpenSSL on it. A request is 16 bytes and a payload, an answer as well; each is written at once and read
// into one buffer that is used again. No checks, no hash, no priorities, no sums.

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "bench/child.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/wire/security.h"
#include "trireme/wire/socket.h"

namespace trireme::bench {

/// One end of the loop's connection. Blocks.
class BareEnd {
 public:
  using Header = std::array<std::uint64_t, 2>;

  /// `tls`: null for a plain socket.
  BareEnd(int fd, const wire::TlsFiles* tls, bool listening) : fd_(fd) {
    if (tls == nullptr) return;
    context_ = {SSL_CTX_new(TLS_method()), SSL_CTX_free};
    SSL_CTX_set_min_proto_version(context_.get(), TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context_.get(), "TLS_AES_128_GCM_SHA256");
    SSL_CTX_use_certificate_chain_file(context_.get(), tls->certificate.c_str());
    SSL_CTX_use_PrivateKey_file(context_.get(), tls->key.c_str(), SSL_FILETYPE_PEM);
    SSL_CTX_load_verify_locations(context_.get(), tls->authority.c_str(), nullptr);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    ssl_ = {SSL_new(context_.get()), SSL_free};
    SSL_set_fd(ssl_.get(), fd_);
    const int done = listening ? SSL_accept(ssl_.get()) : SSL_connect(ssl_.get());
    if (done != 1) throw CommError("the bare loop's ends do not trust each other");
  }

  void read(std::span<std::byte> to) {
    while (!to.empty()) {
      const auto got = ssl_ ? SSL_read(ssl_.get(), to.data(), static_cast<int>(to.size()))
                            : ::read(fd_, to.data(), to.size());
      if (got <= 0) throw CommError("the bare loop has lost its peer");
      to = to.subspan(static_cast<std::size_t>(got));
    }
  }
  Header read_header() {
    Header header;
    read(std::as_writable_bytes(std::span(header)));
    return header;
  }
  void write(Header header, std::span<const std::byte> payload) {
    if (ssl_) return write_encrypted(header, payload);
    iovec parts[2] = {{header.data(), sizeof header},
                      {const_cast<std::byte*>(payload.data()), payload.size()}};
    const ssize_t first = ::writev(fd_, parts, 2);
    if (first < static_cast<ssize_t>(sizeof header)) throw CommError("the bare loop cannot write");
    payload = payload.subspan(static_cast<std::size_t>(first) - sizeof header);
    while (!payload.empty()) {
      const ssize_t more = ::write(fd_, payload.data(), payload.size());
      if (more <= 0) throw CommError("the bare loop cannot write");
      payload = payload.subspan(static_cast<std::size_t>(more));
    }
  }

 private:
  /// The first record holds the header and what fits next to it.
  void write_encrypted(const Header& header, std::span<const std::byte> payload) {
    std::array<std::byte, 16 << 10> record;
    const std::size_t beside = std::min(payload.size(), record.size() - sizeof header);
    std::memcpy(record.data(), header.data(), sizeof header);
    std::memcpy(record.data() + sizeof header, payload.data(), beside);
    const auto rest = payload.subspan(beside);
    const bool written =
        SSL_write(ssl_.get(), record.data(), static_cast<int>(sizeof header + beside)) > 0 &&
        (rest.empty() || SSL_write(ssl_.get(), rest.data(), static_cast<int>(rest.size())) > 0);
    if (!written) throw CommError("the bare loop cannot write");
  }

  const int fd_;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_{nullptr, SSL_CTX_free};
  std::unique_ptr<SSL, void (*)(SSL*)> ssl_{nullptr, SSL_free};
};

struct BareWork {
  std::size_t bytes_there = 0, bytes_back = 0;
  int messages = 1, in_flight = 1;  ///< where both ways carry much, only one may be in flight
};

/// The loop and the process that answers it.
class BareLoop {
 public:
  static constexpr std::size_t kMostBytes = 64 << 20;

  explicit BareLoop(bool tcp, const wire::TlsFiles* tls = nullptr) {
    std::array<int, 2> ends{};
    if (tcp) {
      const wire::Socket listening = wire::listen_at({"127.0.0.1", 0});
      const auto connected = wire::try_connect(listening.local(), Deadline::after_s(5));
      ends[0] = ::dup(connected->fd());
      ends[1] = ::accept(listening.fd(), nullptr, nullptr);
    } else {
      ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data());
    }
    for (const int fd : ends) {
      ::fcntl(fd, F_SETFL, 0);  // blocking
      const int on = 1;
      if (tcp) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    peer_ = std::make_unique<Child>([&] {
      ::close(ends[0]);
      answer(ends[1], tls);
    });
    ::close(ends[1]);
    fd_ = wire::Socket(ends[0]);
    end_ = std::make_unique<BareEnd>(fd_.fd(), tls, false);
  }

  /// Seconds from the first request to the last answer.
  double run(const BareWork& work) {
    if (payload_.size() < std::max(work.bytes_there, work.bytes_back))
      payload_.assign(std::max(work.bytes_there, work.bytes_back), std::byte{1});
    const std::span payload(payload_);
    const double begin_s = now_s();
    for (int sent = 0, answered = 0; answered < work.messages;) {
      if (sent < work.messages && sent - answered < work.in_flight) {
        end_->write({work.bytes_there, work.bytes_back}, payload.first(work.bytes_there));
        ++sent;
      } else {
        end_->read_header();
        end_->read(payload.first(work.bytes_back));
        ++answered;
      }
    }
    return now_s() - begin_s;
  }

 private:
  static void answer(int fd, const wire::TlsFiles* tls) {
    BareEnd end(fd, tls, true);
    std::vector<std::byte> buffer(kMostBytes);
    const std::span payload(buffer);
    while (true) {
      const auto [there, back] = end.read_header();
      end.read(payload.first(there));
      end.write({there, back}, payload.first(back));
    }
  }

  wire::Socket fd_;
  std::unique_ptr<BareEnd> end_;
  std::vector<std::byte> payload_;
  std::unique_ptr<Child> peer_;
};

}  // namespace trireme::bench
