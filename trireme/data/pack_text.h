#pragma once
// Packs a text as tokens: docs/data.md, "Packed data". The file is read twice, in pieces: it may be larger
// than the memory.

#include <cstdint>
#include <filesystem>
#include <string>

#include "trireme/data/pack.h"

namespace trireme::data {

enum class TextForm {
  kCharacters,  ///< each byte is a token, numbered as EncodedText does
  kJsonLines,   ///< each line is a JSON object; its text under `field`, and a token that ends the document
  kU16,         ///< token numbers, little-endian, as nanoGPT writes them
  kU32,
};

/// The packed text and its kind of tokens.
struct TextSource {
  std::filesystem::path path;
  TextForm form = TextForm::kCharacters;
  std::filesystem::path validation = {};  ///< the other split; empty: the last tenth of `path`, of documents
                                          ///< where there are such
  std::string field = "text";             ///< kJsonLines
  std::int64_t vocabulary = 0;            ///< kU16, kU32: how many numbers there are; 0: up to the largest
};

/// Throws as pack does, and DataError: a file that cannot be read, is too short for two splits, changes
/// meanwhile; a line that is no such object; a number beyond the vocabulary. Messages name file and line, or
/// offset.
PackedSize pack_text(const TextSource& source, const PackOptions& options);

}  // namespace trireme::data
