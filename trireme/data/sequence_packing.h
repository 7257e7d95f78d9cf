#pragma once
// Sequence packing: documents of different lengths as blocks of one length, with little or no padding. Fields
// give the document of each token of a block, so a model can keep attention within it. The data set beneath
// is any whose samples are sequences of tokens. Immutable; thread-safe if that data set is.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/data/dataset.h"

namespace trireme::data {

enum class Packing {
  kFirstFit,     ///< a document goes whole into the first block that has room; only longer ones are cut
  kConcatenate,  ///< one after the other, cut at the end of a block; an incomplete last block is left out
};

/// Length of blocks, packing of documents into them, and padding of the rest.
struct PackingOptions {
  std::int64_t length = 1024;  ///< tokens per block
  Packing packing = Packing::kFirstFit;
  std::int64_t padding = 0;     ///< the token after the last document of a block
  std::int64_t ignored = -100;  ///< the target of padding, and of each document's last token
  std::vector<std::int64_t> lengths =
      {};  ///< of the documents, where they are known; empty: each is read once
};

/// Blocks of `documents`, each sample of which has one input, i64 (tokens); targets are not looked at.
/// Samples: input "tokens", i64 (length); "documents", i64, 1 for the tokens of the first document of the
/// block, 2 for the next, 0 for padding; "positions", i64, the place of each token within its document.
/// Target: i64 (length), the token after each in its document. Throws InvalidArgument: a length below 1,
/// lengths that are not as many as documents, no block; DataError: a document that is no sequence of tokens,
/// or of another length than before.
std::shared_ptr<const Dataset> pack_sequences(std::shared_ptr<const Dataset> documents,
                                              const PackingOptions& options);

}  // namespace trireme::data
