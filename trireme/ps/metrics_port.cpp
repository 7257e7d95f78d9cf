#include "trireme/ps/metrics_port.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <list>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/text.h"

namespace trireme::ps {
namespace {

constexpr std::size_t kMostClients = 16;
constexpr std::size_t kMostRequestBytes = 4096;
constexpr double kPatience_s = 2;
constexpr int kLook_ms = 100;  // how often it looks for clients that are late, and for its own end

struct Client {
  explicit Client(wire::Socket its_socket) : socket(std::move(its_socket)) {}
  wire::Socket socket;
  Deadline deadline = Deadline::after_s(kPatience_s);
  std::string request, answer;
  std::size_t num_sent = 0;
  bool is_done = false;
};

std::string response(const std::string& status, const std::string& body) {
  return text("HTTP/1.0 ", status, "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n",
              "Content-Length: ", body.size(), "\r\nConnection: close\r\n\r\n", body);
}

/// Takes what is there. Whether the request is whole, or cannot become one.
bool read_some(Client& client) {
  std::array<char, 1024> bytes;
  const ssize_t count = ::recv(client.socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count > 0) client.request.append(bytes.data(), static_cast<std::size_t>(count));
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) client.is_done = true;
  const bool is_whole = client.request.find("\r\n\r\n") != std::string::npos ||
                        client.request.find("\n\n") != std::string::npos;
  return is_whole || client.request.size() > kMostRequestBytes;
}

void write_some(Client& client) {
  const ssize_t count = ::send(client.socket.fd(), client.answer.data() + client.num_sent,
                               client.answer.size() - client.num_sent, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count > 0) client.num_sent += static_cast<std::size_t>(count);
  if (count < 0 && errno != EAGAIN && errno != EINTR) client.is_done = true;
  if (client.num_sent == client.answer.size()) {
    ::shutdown(client.socket.fd(), SHUT_WR);
    client.is_done = true;
  }
}

}  // namespace

MetricsPort::MetricsPort(const wire::Endpoint& endpoint)
    : listener_(wire::listen_at(endpoint)), thread_([this] { serve(); }) {
  pthread_setname_np(thread_.native_handle(), "trireme-metrics");
}

MetricsPort::~MetricsPort() {
  ends_ = true;
  thread_.join();
}

void MetricsPort::publish(std::string metrics) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(metrics);
}

std::string MetricsPort::answer_to(const std::string& request) const {
  if (request.size() > kMostRequestBytes) return response("431 Request Header Fields Too Large", "");
  const std::vector<std::string> words = split(request.substr(0, request.find_first_of("\r\n")), ' ');
  if (words[0] != "GET") return response("405 Method Not Allowed", "only GET\n");
  if (words.size() < 2 || words[1] != "/metrics") return response("404 Not Found", "only /metrics\n");
  const std::lock_guard lock(mutex_);
  if (text_.empty()) return response("503 Service Unavailable", "nothing is known yet\n");
  return response("200 OK", text_);
}

void MetricsPort::serve() {
  std::list<Client> clients;
  while (!ends_) {
    std::vector<pollfd> waits = {{listener_.fd(), POLLIN, 0}};
    for (const Client& client : clients)
      waits.push_back({client.socket.fd(), static_cast<short>(client.answer.empty() ? POLLIN : POLLOUT), 0});
    ::poll(waits.data(), waits.size(), kLook_ms);
    std::size_t place = 1;
    for (Client& client : clients) {
      const bool is_ready = waits[place++].revents != 0;
      if (is_ready && client.answer.empty() && read_some(client)) client.answer = answer_to(client.request);
      if (is_ready && !client.answer.empty()) write_some(client);
    }
    std::erase_if(clients, [](const Client& client) { return client.is_done || client.deadline.expired(); });
    if (waits[0].revents == 0) continue;
    const int fd = ::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      ::poll(nullptr, 0, kLook_ms);  // out of descriptors: nothing is won by asking at once
      continue;
    }
    if (clients.size() >= kMostClients) clients.pop_front();  // the oldest makes room
    clients.emplace_back(wire::Socket(fd));
  }
}

}  // namespace trireme::ps
