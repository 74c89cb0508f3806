"""A picture of ratios: what changed between two reports, or what benchmarks reached of their goals."""
import html


def svg(lines, title):
    """A bar for each ratio, and a line where nothing has changed."""
    rows = ['<text x="8" y="{y}">{what}</text><rect x="560" y="{top}" width="{width:.0f}" height="12" fill="{fill}"/>'
            '<text x="{end:.0f}" y="{y}">{ratio:.2f}</text>'.format(
                y=52 + 18 * number, top=42 + 18 * number, what=html.escape(what), width=min(ratio, 2) * 100,
                end=568 + min(ratio, 2) * 100, fill='#b03030' if ratio < 0.9 else '#3070b0', ratio=ratio)
            for number, (what, _, _, _, ratio) in enumerate(lines)]
    return ('<svg xmlns="http://www.w3.org/2000/svg" width="820" height="{0}" font-family="sans-serif" '
            'font-size="11">\n'
            '<rect width="820" height="{0}" fill="white"/><text x="8" y="20" font-size="14">{1}</text>\n'
            '<line x1="660" x2="660" y1="34" y2="{0}" stroke="black"/>\n{2}\n</svg>\n').format(
                50 + 18 * len(rows), html.escape(title), '\n'.join(rows))
