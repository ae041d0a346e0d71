"""Workbooks of sheets, without a library that writes them."""

import io
import zipfile
from collections.abc import Sequence


def workbook(*sheets: Sequence[Sequence[str | float]]) -> bytes:
    main, rel = (
        "http://schemas.openxmlformats.org/",
        "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
    )
    packed, ids = io.BytesIO(), range(1, len(sheets) + 1)
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("[Content_Types].xml", f'<Types xmlns="{main}package/2006/content-types"/>')
        file.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{main}package/2006/relationships"><Relationship Id="r" '
            f'Type="{rel}/officeDocument" '
            'Target="xl/workbook.xml"/></Relationships>',
        )
        names = "".join(f'<sheet name="S{n}" sheetId="{n}" r:id="r{n}"/>' for n in ids)
        book = (
            f'<workbook xmlns="{main}spreadsheetml/2006/main" '
            f'xmlns:r="{rel}"><sheets>{names}</sheets></workbook>'
        )
        file.writestr("xl/workbook.xml", book)
        links = "".join(
            f'<Relationship Id="r{n}" Type="{rel}/worksheet" Target="worksheets/s{n}.xml"/>'
            for n in ids
        )
        file.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{main}package/2006/relationships">{links}</Relationships>',
        )
        for n, rows in zip(ids, sheets, strict=True):
            lines = ""
            for row in rows:
                cells = (
                    f'<c t="inlineStr"><is><t xml:space="preserve">{cell}</t></is></c>'
                    if isinstance(cell, str)
                    else f"<c><v>{cell}</v></c>"
                    for cell in row
                )
                lines += f"<row>{''.join(cells)}</row>"
            head = f'<worksheet xmlns="{main}spreadsheetml/2006/main">'
            sheet = f"{head}<sheetData>{lines}</sheetData></worksheet>"
            file.writestr(f"xl/worksheets/s{n}.xml", sheet)
    return packed.getvalue()
