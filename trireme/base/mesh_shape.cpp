#include "trireme/base/mesh_shape.h"

#include <algorithm>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme {
namespace {

bool holds(const MeshShape::Fold& fold, std::string_view axis) {
  return std::ranges::find(fold, axis) != fold.end();
}

}  // namespace

MeshShape::MeshShape(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  std::set<std::string> names;
  for (const MeshAxis& axis : axes_) {
    require(!axis.name.empty() && axis.size >= 1, "mesh ", describe(),
            ": every axis needs a name and a size of at least 1");
    require(names.insert(axis.name).second, "mesh ", describe(), ": the axis '", axis.name,
            "' is there twice");
  }
}

std::string MeshShape::describe() const {
  std::vector<std::string> parts;
  for (const MeshAxis& axis : axes_) parts.push_back(text(axis.name, "=", axis.size));
  return join(parts, " x ");
}

MeshShape::Fold MeshShape::names() const {
  Fold names;
  for (const MeshAxis& axis : axes_) names.push_back(axis.name);
  return names;
}

int MeshShape::num_ranks() const {
  int product = 1;
  for (const MeshAxis& axis : axes_) product *= axis.size;
  return product;
}

bool MeshShape::has(std::string_view axis) const {
  return std::ranges::any_of(axes_, [&](const MeshAxis& each) { return each.name == axis; });
}

int MeshShape::size(std::string_view axis) const { return size(Fold{std::string(axis)}); }

int MeshShape::size(const Fold& fold) const {
  int product = 1;
  for (const MeshAxis& axis : axes_) {
    if (holds(fold, axis.name)) product *= axis.size;
  }
  return product;
}

/// Difference in rank between neighbours on the axis.
int MeshShape::stride(std::size_t axis) const {
  int stride = 1;
  for (std::size_t i = axis + 1; i < axes_.size(); ++i) stride *= axes_[i].size;
  return stride;
}

int MeshShape::coordinate(int rank, std::string_view axis) const { return place(rank, {std::string(axis)}); }

int MeshShape::place(int rank, const Fold& fold) const {
  int place = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (holds(fold, axes_[i].name)) place = place * axes_[i].size + rank / stride(i) % axes_[i].size;
  }
  return place;
}

int MeshShape::rank_at(const std::vector<int>& coordinates) const {
  require(coordinates.size() == axes_.size(), "rank_at: ", coordinates.size(), " coordinates for the mesh ",
          describe());
  int rank = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    require(coordinates[i] >= 0 && coordinates[i] < axes_[i].size, "rank_at: coordinate ", coordinates[i],
            " on axis '", axes_[i].name, "' of size ", axes_[i].size);
    rank += coordinates[i] * stride(i);
  }
  return rank;
}

std::vector<std::vector<int>> MeshShape::groups(const Fold& fold) const {
  Fold others;
  for (const MeshAxis& axis : axes_) {
    if (!holds(fold, axis.name)) others.push_back(axis.name);
  }
  std::vector<std::vector<int>> groups(static_cast<std::size_t>(size(others)));
  for (int rank = 0; rank < num_ranks(); ++rank)
    groups[static_cast<std::size_t>(place(rank, others))].push_back(rank);
  return groups;
}

MeshShape MeshShape::only(const Fold& fold) const {
  std::vector<MeshAxis> axes = axes_;
  std::erase_if(axes, [&](const MeshAxis& axis) { return !holds(fold, axis.name); });
  return MeshShape(std::move(axes));
}

MeshShape MeshShape::split(std::string_view axis, const std::string& outer, const std::string& inner,
                           int inner_size) const {
  std::vector<MeshAxis> axes;
  for (const MeshAxis& each : axes_) {
    if (each.name != axis) {
      axes.push_back(each);
      continue;
    }
    require(inner_size >= 1 && each.size % inner_size == 0, "the axis '", axis, "' of size ", each.size,
            " cannot be split into groups of ", inner_size);
    axes.push_back({outer, each.size / inner_size});
    axes.push_back({inner, inner_size});
  }
  require(axes.size() == axes_.size() + 1, "the mesh ", describe(), " has no axis '", axis, "' to split");
  return MeshShape(std::move(axes));
}

MeshShape MeshShape::merge(const Fold& fold, const std::string& name) const {
  std::vector<MeshAxis> axes;
  bool merged = false;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (!holds(fold, axes_[i].name)) {
      axes.push_back(axes_[i]);
      continue;
    }
    require(!merged || holds(fold, axes_[i - 1].name), "the axes ", join(fold), " of the mesh ", describe(),
            " do not lie side by side, and cannot be merged");
    if (!merged) axes.push_back({name, size(fold)});
    merged = true;
  }
  return MeshShape(std::move(axes));
}

}  // namespace trireme
