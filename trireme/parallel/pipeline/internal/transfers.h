#pragma once
// The tensors that a rank of a pipeline gets from and gives to others. Receives are posted ahead, in the
// order of the program, and waited for where their tensors are used. So a message can arrive while the rank
// computes. Sends are started and polled until they are done. One thread.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/batch/fields.h"
#include "trireme/comm/group.h"

namespace trireme::parallel {

/// Shape, type and name of a tensor, known before it arrives, and its memory format.
struct TensorSpec {
  std::vector<std::int64_t> sizes;
  at::ScalarType type = at::kFloat;
  std::string name = {};       ///< that of the field, if it has one
  bool channels_last = false;  ///< images, pixel by pixel; tensors for another rank are converted to it

  /// The same tensors, in any memory format.
  bool operator==(const TensorSpec& other) const {
    return sizes == other.sizes && type == other.type && name == other.name;
  }
  at::MemoryFormat format() const {
    return channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  }
};

/// The values of a tensor in the memory order of that spec: the form for sends and receives of a group. A
/// view, where the tensor has that format.
at::Tensor in_order(const at::Tensor& tensor, const TensorSpec& spec);

TensorSpec spec_of(const at::Tensor& tensor, std::string name = {});
/// "(8, 64, 32) Float", "'mask' (8, 64) Bool": types have libtorch's names.
std::string to_text(const TensorSpec& spec);

/// Tensors from a stage to the next. Gradients come back for some of them.
struct EdgeSpec {
  std::vector<TensorSpec> tensors = {};
  std::vector<std::size_t> without_gradient = {};  ///< rising

  bool has_gradient(std::size_t tensor) const;
  /// The gradients that come back.
  std::vector<TensorSpec> gradients() const;
};

/// "(8, 64, 32) Float", "2 tensors: (8, 64, 32) Float; (8, 64) Bool"
std::string to_text(const std::vector<TensorSpec>& specs);
std::vector<TensorSpec> specs_of(const Fields& tensors);

/// Tensors that are there, or on their way.
struct Arrival {
  Fields tensors;
  std::map<std::size_t, TensorSpec> encoded = {};  ///< of those that arrive as messages: their specs
  std::vector<comm::Pending> pending = {};
};

class EdgeCodec;
struct ActivationCompression;

class Transfers {
 public:
  struct Incoming {
    int source = 0;
    std::vector<TensorSpec> specs;
    std::vector<std::size_t> as_they_are = {};  ///< which of them are never encoded, rising
  };
  struct Outgoing {
    int destination = 0;
    std::vector<TensorSpec> specs;  ///< as Incoming's
    std::vector<std::size_t> as_they_are = {};
    std::uint64_t seed = 0;  ///< of random numbers of the encoding
  };

  /// The next receive, requested a little ahead; empty: no more.
  using Announcement = std::function<std::optional<Incoming>()>;

  /// Received tensors are on `device`.
  Transfers(comm::Group group, c10::Device device, const ActivationCompression& compression);
  ~Transfers();

  /// Posts the first receives.
  void begin(Announcement next_incoming);
  /// The next one.
  Arrival receive();
  /// The tensors, once they are there.
  Fields wait(Arrival arrival);
  void send(const Fields& tensors, const Outgoing& how);
  /// Waits for the sends; all announced receives have to be done.
  void finish();

  double waited_s() const { return waited_s_; }
  std::int64_t sent_bytes() const { return sent_bytes_; }

 private:
  void post();
  void wait_for(comm::Pending& pending);

  comm::Group group_;
  const c10::Device device_;
  const std::unique_ptr<const EdgeCodec> codec_;
  Announcement next_incoming_;
  std::deque<Arrival> posted_;
  std::deque<std::pair<at::Tensor, comm::Pending>> sends_;
  double waited_s_ = 0;
  std::int64_t sent_bytes_ = 0;
};

/// A spec, from one rank to another. For set-up.
void send_spec(comm::Group& group, const EdgeSpec& spec, int destination);
EdgeSpec receive_spec(comm::Group& group, int source);

}  // namespace trireme::parallel
