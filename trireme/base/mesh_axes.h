#pragma once
// The axes of a training's mesh of ranks, as one table, slowest first: ranks that differ in the last axis
// only are neighbours. A row names the state or work that its ranks split, and the configuration key of their
// number. Meshes of plans, groups, checks, `trireme topology --mesh` and the table of docs/hybrid.md follow
// from the rows (ADR 0088). Pure; thread-safe.

#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "trireme/base/mesh_shape.h"

namespace trireme {

/// State or work that ranks along an axis split: each has a part of it. They are alike in everything else.
enum class Shared {
  kStages,     ///< consecutive parts of the model
  kSamples,    ///< of a global batch
  kExperts,    ///< of the layers that have some
  kSequences,  ///< pieces of each sequence
  kLayers,     ///< parts of each layer
};

struct AxisRow {
  const char* name = nullptr;  ///< "tp"
  const char* key = nullptr;   ///< "parallel.tensor": number of ranks along it; of `is_rest` see there
  std::vector<Shared> shared = {};
  /// It has the ranks that the other axes leave, and its key counts ranks along all axes that share samples.
  bool is_rest = false;
  bool is_always_there = false;  ///< a mesh has it where it has one rank, too
  const char* who = nullptr;     ///< differs along it, for docs/hybrid.md
  const char* exchange = nullptr;

  /// Whether that is among `shared`.
  bool shares(Shared what) const;
};

/// All of them.
std::span<const AxisRow> mesh_axes();

/// The axes over which any of these is sharded, or none of these, in their order.
MeshShape::Fold axes_that_share(std::initializer_list<Shared> any);
MeshShape::Fold axes_that_share_none(std::initializer_list<Shared> any);

/// "dp=2,tp=4" as a mesh of so many ranks, with its axes in the order of the table. The axis that has the
/// rest of the ranks may be left out. Throws InvalidArgument: an unknown axis, with the nearest; no number;
/// sizes that do not make up the ranks.
MeshShape parse_mesh(std::string_view words, int num_ranks);

}  // namespace trireme
