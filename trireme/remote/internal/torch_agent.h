#pragma once
// The agent of libtorch's distributed autograd: messages of the engine are calls of an rpc::Agent.

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "trireme/rpc/agent_core.h"

namespace trireme::remote {

namespace torch_rpc = torch::distributed::rpc;

class TorchAgent final : public torch_rpc::RpcAgent {
 public:
  explicit TorchAgent(double timeout_s);
  ~TorchAgent() override;

  /// Of the group that it speaks for. Until then, messages wait.
  void set_core(const std::shared_ptr<rpc::AgentCore>& core);
  /// Contexts of this process, until forget().
  static void note(std::int64_t context);
  static std::vector<std::int64_t> noted();
  /// The engine makes texts of errors. The first that a message of this context met, as it was; or the other.
  static void note_failure(std::int64_t context, const std::exception_ptr& error);
  static std::exception_ptr cause_of_failure(std::int64_t context, const std::exception_ptr& otherwise);
  static void forget(std::int64_t context);

  c10::intrusive_ptr<torch_rpc::JitFuture> send(const torch_rpc::WorkerInfo& to,
                                                c10::intrusive_ptr<torch_rpc::Message> message,
                                                float timeout_s,
                                                const torch_rpc::DeviceMap& device_map) override;
  using RpcAgent::getWorkerInfo;
  const torch_rpc::WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const torch_rpc::WorkerInfo& getWorkerInfo(torch_rpc::worker_id_t id) const override;
  std::vector<torch_rpc::WorkerInfo> getWorkerInfos() const override { return {}; }
  void join(bool, float) override {}
  void sync() override {}
  void startImpl() override {}
  void shutdownImpl() override {}
  std::unordered_map<std::string, std::string> getMetrics() override { return {}; }

 private:
  void addGilWaitTime(std::chrono::microseconds) override {}

  std::promise<std::weak_ptr<rpc::AgentCore>> core_told_;
  const std::shared_future<std::weak_ptr<rpc::AgentCore>> core_;
  mutable std::mutex mutex_;
  mutable std::map<torch_rpc::worker_id_t, std::unique_ptr<torch_rpc::WorkerInfo>> workers_;
};

}  // namespace trireme::remote
