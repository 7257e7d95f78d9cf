#pragma once
// Workers of one group, as agents of this process, and the exceptions of their calls.

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/rpc/agent.h"

namespace trireme::test {

inline std::string thrown_by(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class Workers {
 public:
  explicit Workers(const std::vector<std::string>& names, rpc::AgentOptions options = {})
      : options_(std::move(options)) {
    options_.directory = std::make_shared<rpc::LocalDirectory>();
    for (const auto& name : names) join(name);
  }
  rpc::Agent& operator[](const std::string& name) { return *agents_.at(name); }
  void join(const std::string& name) {
    options_.name = name;
    agents_[name] = rpc::Agent::join(options_);
  }
  /// Ends the agent like the death of its process.
  void kill(const std::string& name) { agents_.erase(name); }
  /// Options of workers that join later.
  rpc::AgentOptions& options() { return options_; }

 private:
  rpc::AgentOptions options_;
  std::map<std::string, std::shared_ptr<rpc::Agent>> agents_;
};

}  // namespace trireme::test
