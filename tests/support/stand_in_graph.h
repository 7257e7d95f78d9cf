#pragma once
// Capture and replay on the stand-in device (comm/device_graph.h), as strict as CUDA graphs, and stricter
// where those go wrong in silence. What is issued while a graph is captured is recorded; what it has changed
// outside of the graph is taken back when the capture ends, random numbers included. Errors: a read on the
// host, a copy from pageable memory, a wait; in a replay an operation that reads memory which was freed after
// the capture. One capture at a time in a process.

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
  /// Where the bytes of a storage of the device are.
  using Bytes = std::function<std::byte*(const void* address)>;
  explicit StandInGraph(Bytes bytes) : bytes_(std::move(bytes)) {}
  ~StandInGraph();

  void begin();
  void end();
  void replay();

  /// The one that is being captured; null: none.
  static StandInGraph* capturing();
  /// Throws c10::Error while a graph is captured: the host would have to wait for the device.
  static void reject_wait(const std::string& what);

  /// Memory that belongs to the graph.
  void made(const at::Tensor& tensor);
  /// The next operation writes them.
  void will_write(const at::Tensor& tensor);
  using Values = std::vector<c10::IValue>;
  /// Holds no tensors itself.
  using Again = std::function<void(const Values& arguments, const Values& results)>;
  /// An operation on `arguments` that has made `results`, which `again` does once more into the same memory.
  void add(std::string operation, Values arguments, Values results, Again again);

 private:
  struct Entry {
    std::string operation;
    Values arguments, results;
    Again again;
  };
  /// Memory of others that the graph reads or writes.
  struct Outside {
    std::string operation;  ///< the first one
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
      before_;  ///< what will be written
  at::Tensor generator_state_;
};

}  // namespace trireme::test
