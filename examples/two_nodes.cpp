// Two processes that communicate over a channel: a server that adds numbers, and a worker that sends them.
//   example_two_nodes [ADDRESS]         default: tcp:127.0.0.1:0; or unix:FOLDER/NAME, for shared memory
// docs/wire.md explains it.

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iostream>

#include "trireme/base/error.h"
#include "trireme/base/run_main.h"
#include "trireme/wire/node_loop.h"

using namespace trireme::wire;

/// A node of either process: the worker sends numbers and prints the answer, the server returns their sum.
class Talker final : public Node {
 public:
  Talker(NodeLoop& loop, Address server) : loop_(loop), server_(std::move(server)) {}

 private:
  void on_start(Surroundings& surroundings) override {
    network_ = &surroundings.network();
    if (!server_.empty()) network_->connect(server_);
  }
  void on_connected(ConnectionId peer, const PeerIdentity&) override {
    if (server_.empty()) return;
    const std::vector<float> numbers(1 << 20, 0.5F);
    std::vector<std::byte> body(numbers.size() * sizeof(float));
    std::memcpy(body.data(), numbers.data(), body.size());
    network_->send(peer, {.kind = 1, .body = Buffer::of(std::move(body))});
  }
  void on_message(ConnectionId peer, Message message) override {
    if (message.kind == 1) {
      double sum = 0;
      for (std::size_t at = 0; at < message.body.size(); at += sizeof(float)) {
        float number = 0;
        std::memcpy(&number, message.body.bytes().data() + at, sizeof number);
        sum += number;
      }
      std::vector<std::byte> head(sizeof sum);
      std::memcpy(head.data(), &sum, sizeof sum);
      return network_->send(peer, {.kind = 2, .head = std::move(head)});
    }
    double sum = 0;
    std::memcpy(&sum, message.head.data(), std::min(message.head.size(), sizeof sum));
    std::cout << "the server says: " << sum << std::endl;
    loop_.stop();
  }
  void on_closed(ConnectionId, CloseCause, const std::string& reason) override {
    if (!server_.empty()) throw trireme::CommError(reason);
    loop_.stop();  // the worker has left
  }
  void on_timer(TimerId) override {}

  NodeLoop& loop_;
  const Address server_;
  Network* network_ = nullptr;
};

int main(int argc, char** argv) {
  return trireme::run_main([&] {
    NodeLoop server(
        {.listen = {argc > 1 ? argv[1] : "tcp:127.0.0.1:0"}, .self = {.role = "server", .name = "0"}});
    const Address address = server.addresses().front();
    if (::fork() == 0) {
      NodeLoop worker({.self = {.role = "worker", .name = "0"}});
      Talker talker(worker, address);
      worker.run(talker);
      ::_exit(0);
    }
    Talker talker(server, "");
    server.run(talker);
    int status = 0;
    ::wait(&status);
    return status;
  });
}
