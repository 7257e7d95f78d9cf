#pragma once
// Common parts of the drawings of this module: the colours of actions, numbers and XML text.

#include <span>
#include <string>
#include <string_view>

#include "trireme/schedule/action.h"

namespace trireme::schedule {

struct Look {
  ActionKind kind;
  std::string_view name;
  std::string_view light, dark;  ///< first chunk of a rank, later chunks
};

/// Of every kind that is drawn.
std::span<const Look> looks();

/// Null: actions of this kind are not drawn.
const Look* look_of(ActionKind kind);

/// Of actions that continue concurrently with a rank's computations: weights that are gathered, gradients
/// that are reduced.
std::span<const Look> looks_beside();

/// Two decimals at most, none where they are zeros.
std::string number(double value);

/// "1 rank", "2 ranks", "2.5 activations"; "4 micro-batches" with "es".
std::string counted(double count, std::string_view what, std::string_view plural = "s");

/// "12.5%"
std::string percent(double share);

/// Text for XML and HTML, attributes included.
std::string escaped(std::string_view plain);

}  // namespace trireme::schedule
