"""Makes `src/fonts/stix-two-math.woff2`, the font of the book's formulas: the few signs that formulas use.

Browsers stretch brackets, braces and roots only with a font that has an OpenType table for mathematics, and many
machines have none. The font is STIX Two Math, under the SIL Open Font License, which is beside it. Run this script by
hand when a formula needs a sign that is not in CHARACTERS (a test says so):

    npm pack @fontsource/stix-two-math@5.3.0 && tar xzf fontsource-stix-two-math-5.3.0.tgz
    pip install fonttools==4.68.0 brotli==1.2.1
    python book/math_font.py package/files/stix-two-math-latin-400-normal.woff2
"""

import sys
import unicodedata
from pathlib import Path

FONT = Path(__file__).resolve().parent / "src" / "fonts" / "stix-two-math.woff2"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
GREEK = "αβγδεζηθικλμνξοπρστυφχψωϵΓΔΘΛΣΦΨΩ"
SIGNS = "0123456789 \xa0+-−±·×÷/=≠≈≡<>≤≥≪≫()[]{}|‖⟨⟩⌈⌉⌊⌋,.:;!%′…⋯∈∉⊂∪∩∑∏∫√∂∇∞⊤⊙⊕∘→←↦⇒⟹⟺ℝ"


def italics(letters: str) -> str:
    """The slanted mathematical letters: browsers draw an identifier of one letter with these."""
    forms = {"h": "\u210e"}
    for code in (*range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C)):
        if plain := unicodedata.decomposition(chr(code)).removeprefix("<font> "):
            forms[chr(int(plain, 16))] = chr(code)
    return "".join(forms.get(letter, "") for letter in letters)


CHARACTERS = LETTERS + GREEK + SIGNS + italics(LETTERS + GREEK)


def make(source: str) -> None:
    """Write the font with CHARACTERS and all their sizes."""
    from fontTools import subset

    options = subset.Options(flavor="woff2", layout_features=["ssty"], hinting=False)
    font = subset.load_font(source, options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(text=CHARACTERS)
    subsetter.subset(font)
    subset.save_font(font, str(FONT), options)


if __name__ == "__main__":
    make(sys.argv[1])
    print(f"{FONT.name}: {FONT.stat().st_size:,} bytes")
