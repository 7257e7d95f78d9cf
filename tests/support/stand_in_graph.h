#pragma once
// Capture and replay on the mock device (comm/device_graph.h). It is as strict as CUDA graphs, and stricter
// where those fail silently. Work that is issued during a capture is recorded. Its changes outside of the
// graph are undone when the capture ends, including random numbers. Errors are a read on the host, a copy
// from pageable memory, and a wait. In a replay, an operation that reads memory which was freed after the
// capture is an error. One capture at a time in a process.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace trireme::test {

class StandInGraph {
 public:
  /// Returns the location of the bytes of a storage of the device.
  using Bytes = std::function<std::byte*(const void* address)>;
  explicit StandInGraph(Bytes bytes) : bytes_(std::move(bytes)) {}
  ~StandInGraph();

  void begin();
  void end();
  void replay();

  /// The graph that is being captured; null: none.
  static StandInGraph* capturing();
  /// Throws c10::Error while a graph is captured: the host would have to wait for the device.
  static void reject_wait(const std::string& what);

  /// Marks memory as part of the graph.
  void made(const at::Tensor& tensor);
  /// Says that the next operation writes the tensor.
  void will_write(const at::Tensor& tensor);
  using Values = std::vector<c10::IValue>;
  /// Holds no tensors itself.
  using Again = std::function<void(const Values& arguments, const Values& results)>;
  /// Adds an operation on `arguments` that has produced `results`. `again` repeats it into the same memory.
  void add(std::string operation, Values arguments, Values results, Again again);

 private:
  struct Entry {
    std::string operation;
    Values arguments, results;
    Again again;
  };
  /// Memory outside of the graph that the graph reads or writes.
  struct Outside {
    std::string operation;  ///< the first operation that uses it
    std::string sizes;
    c10::Storage storage;
    std::map<const c10::TensorImpl*, std::size_t> held;  ///< references of the graph to tensors of it
  };

  void note(const std::string& operation, const at::Tensor& tensor);
  void check_alive() const;

  const Bytes bytes_;
  std::vector<Entry> entries_;
  std::set<const c10::StorageImpl*> made_;
  std::map<const c10::StorageImpl*, Outside> outside_;
  std::map<const c10::StorageImpl*, std::pair<c10::Storage, std::vector<std::byte>>>
      before_;  ///< the bytes before the first write
  at::Tensor generator_state_;
};

}  // namespace trireme::test
