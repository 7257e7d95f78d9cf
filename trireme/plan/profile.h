#pragma once
// Costs of a model: times and bytes of its layers, as a graph of cuts. A cut is a place where a pipeline can
// be cut: cut 0 is before the first layer, cut c > 0 after state c - 1, where all layers of the state are
// done. A chain of layers has one state per layer; a graph with branches has one per antichain of layers
// (Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1;
// the states are those of the optimizer published with it). Invariants: every state comes after its
// predecessors, none costs less than they do, and all lead to the last. Immutable; thread-safe.

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::plan {

/// One layer of a chain and its costs for one (micro-)batch.
struct Layer {
  std::string name = {};
  double forward_s = 0;
  double backward_s = 0;
  double activation_bytes = 0;  ///< kept from forward to backward
  double parameter_bytes = 0;
  double output_bytes = 0;  ///< handed to the next layer; its gradient comes back in the same size
};

/// A cut with the costs of all layers before it.
struct State {
  std::string name;      ///< the layers whose outputs cross the cut: "node5", "node5|node14"
  double compute_s = 0;  ///< forward and backward
  double activation_bytes = 0;
  double parameter_bytes = 0;
  double output_bytes = 0;                ///< bytes that cross the cut; alone not cumulative
  std::vector<std::size_t> predecessors;  ///< states whose layers are among its own; the nearest are enough
};

/// The work between two cuts.
struct Work {
  double compute_s = 0;
  double activation_bytes = 0;
  double parameter_bytes = 0;
  std::size_t num_layers = 0;
};

class Profile {
 public:
  /// Throws InvalidArgument that names the state, the figure, the value found and the expected one.
  explicit Profile(std::vector<State> states);
  /// A chain. Throws InvalidArgument: no layer, or a figure that is negative or no number.
  explicit Profile(std::span<const Layer> layers);

  std::size_t num_states() const { return states_.size(); }
  const std::vector<State>& states() const { return states_; }
  /// Layers of the longest way to the last state, which is all layers where states are those of a graph.
  std::size_t num_layers() const { return num_layers_.back(); }
  std::size_t last_cut() const { return states_.size(); }

  /// Whether a stage can be between the two cuts: all layers before `from` are among those before `to`.
  bool is_before(std::size_t from, std::size_t to) const { return before_[to][from]; }
  /// Costs of the stage between the two cuts; is_before(from, to) holds.
  Work between(std::size_t from, std::size_t to) const;
  /// Bytes that cross the cut towards the next stage; 0 at both ends.
  double output_bytes(std::size_t cut) const;

 private:
  std::vector<State> states_;
  std::vector<std::vector<bool>> before_;  ///< before_[cut][earlier cut]
  std::vector<std::size_t> num_layers_;    ///< before each cut
};

/// The input of parse_profile(), with every figure exact.
std::string to_csv(const Profile& profile);

/// Reads the states of a profile from text, first line the header
/// `state,antichain,cum_compute_s,cum_activation_bytes,cum_parameter_bytes,output_activation_bytes,predecessor_states`,
/// then one line per state, numbered from 0; predecessors are separated by a space. Throws DataError that
/// names line, column, the value found and the expected one.
Profile parse_profile(std::string_view csv);

/// The same from a file; the message begins with its path.
Profile read_profile(const std::filesystem::path& path);

}  // namespace trireme::plan
