#include "trireme/comm/internal/agent_meeting.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using Talk = std::function<std::string(c10d::Store&)>;

std::string key_of(const LaunchEnvironment& environment) {
  return text("trireme/store/", environment.restart_count);
}

std::string message_of(const std::exception& error) {
  const auto* foreign = dynamic_cast<const c10::Error*>(&error);
  return foreign != nullptr ? foreign->what_without_backtrace() : error.what();
}

/// Shuts down all connections of this process to the agent. Every wait on one of them then ends.
void shut_down_connections(int port) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    const int found = peer.ss_family == AF_INET    ? ntohs(reinterpret_cast<sockaddr_in*>(&peer)->sin_port)
                      : peer.ss_family == AF_INET6 ? ntohs(reinterpret_cast<sockaddr_in6*>(&peer)->sin6_port)
                                                   : -1;
    if (found == port) ::shutdown(fd, SHUT_RDWR);
  }
}

std::string talk_to_agent(const LaunchEnvironment& environment, double timeout_s, const Talk& talk) {
  std::promise<std::string> promise;
  auto said = promise.get_future();
  std::thread thread([&] {
    try {
      c10d::TCPStoreOptions options;
      options.port = static_cast<std::uint16_t>(environment.master_port);
      options.waitWorkers = false;
      options.timeout = whole_milliseconds(timeout_s);
      c10d::TCPStore store(environment.master_addr, options);
      promise.set_value(talk(store));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  });
  pthread_setname_np(thread.native_handle(), "trireme-agent");
  // c10d's own timeout is used first if it works: its error message is better.
  if (said.wait_until(Deadline::after_s(timeout_s + 1).at()) != std::future_status::ready) {
    while (said.wait_for(Seconds(0.02)) != std::future_status::ready) {
      shut_down_connections(environment.master_port);
    }
  }
  thread.join();
  try {
    return said.get();
  } catch (const std::exception& error) {
    throw CommError(text("rank ", environment.rank, " of ", environment.world_size,
                         " could not meet the others through the store of torchrun's agent at ",
                         environment.master_addr, ":", environment.master_port, " within ",
                         human_duration(timeout_s), ": ", message_of(error)));
  }
}

// c10d logs warnings and stack frames; Trireme's errors have the same information in a better form.
void quieten_c10d() {
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = 3;
}

}  // namespace

void tell_through_agent(const LaunchEnvironment& environment, const wire::Endpoint& store, double timeout_s) {
  quieten_c10d();
  talk_to_agent(environment, timeout_s, [&](c10d::Store& agent) {
    agent.set(key_of(environment), store.text());
    return std::string();
  });
}

wire::Endpoint learn_from_agent(const LaunchEnvironment& environment, double timeout_s) {
  quieten_c10d();
  const auto timeout = whole_milliseconds(timeout_s);
  const std::string told = talk_to_agent(environment, timeout_s, [&](c10d::Store& agent) {
    agent.wait({key_of(environment)}, timeout);
    return agent.get_to_str(key_of(environment));
  });
  try {
    return wire::Endpoint::parse(told, "what torchrun's agent says of rank 0's store");
  } catch (const InvalidArgument& error) {
    throw CommError(error.what());
  }
}

}  // namespace trireme::comm
